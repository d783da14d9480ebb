//! ReopenContainerLog: what the kubelet does after it has renamed a log that grew too long.

use std::time::Duration;

use anyhow::Result;
use gantry_proto::cri;
use gantry_tests::pod::{self, Pod};
use gantry_tests::poll::poll;

use crate::images::ready;

#[test]
fn no_line_is_lost_or_doubled_however_often_the_log_is_renamed() -> Result<()> {
    let ready = ready()?;
    let pod = Pod::run(&ready.node, "rotate")?;
    let script = "i=0; while [ ! -e /tmp/stop ]; do i=$((i+1)); echo $i; done; echo last";
    let id = pod.start(&pod::container_config("rotate", &ready.image, &["sh", "-c", script]))?;
    let path = pod.log_path("rotate");
    let mut text = String::new();
    for number in 0..10 {
        poll("lines", Duration::from_secs(20), || {
            let length = std::fs::metadata(&path).map_err(|error| error.to_string())?.len();
            if length > 20_000 { Ok(()) } else { Err(format!("{length} bytes")) }
        })?;
        let old = path.with_extension(format!("log.{number}"));
        std::fs::rename(&path, &old)?;
        let request = cri::ReopenContainerLogRequest { container_id: id.clone() };
        ready.node.cri().reopen_container_log(request)?;
        // Answered: nothing goes to the old file any more.
        text.push_str(&pod::parse_log(&std::fs::read_to_string(&old)?)?);
    }
    let stop = ["touch", "/tmp/stop"].map(str::to_owned).to_vec();
    let request = cri::ExecSyncRequest { container_id: id.clone(), cmd: stop, timeout: 10 };
    // The container ends when it sees the file, maybe before the command that made it has: by SIGKILL then.
    let ended = ready.node.cri().exec_sync(request)?;
    assert!(matches!(ended.exit_code, 0 | 137), "{ended:?}");
    pod::await_exit(&ready.node, &id)?;
    text.push_str(&pod.log("rotate")?);
    let lines: Vec<&str> = text.lines().collect();
    for (index, line) in lines[..lines.len() - 1].iter().enumerate() {
        assert_eq!(*line, (index + 1).to_string());
    }
    assert_eq!(lines.last(), Some(&"last"));
    let request = cri::ReopenContainerLogRequest { container_id: id };
    let error = ready.node.cri().reopen_container_log(request).unwrap_err();
    assert_eq!(error.message(), "container is in CONTAINER_EXITED state");
    pod.remove()?;
    ready.node.assert_clean(&ready.before)
}
