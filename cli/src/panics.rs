//! What a panic does to a process that serves: it ends it. Owns the hook; decides nothing else. Called
//! by the kubelet and by `main` for the runtime, `gantry run` and `gantry agent`.

/// A task that dies unnoticed would leave a node that looks well and does nothing: a runtime that sees no
/// exit any more, a kubelet that starts no pod. The pods go on, and whoever started this process starts it
/// again; it adopts them.
pub(crate) fn abort_on_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        // Or it is an error that somebody waits for, such as a damaged image index.
        if !gantry_image::contained::is_contained() {
            std::process::abort();
        }
    }));
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::{Command, Stdio};

    /// Says that this process is the one that panics.
    const INSIDE: &str = "GANTRY_TEST_PANICS";

    #[test]
    fn a_panic_in_any_task_ends_the_process() {
        if std::env::var_os(INSIDE).is_some() {
            super::abort_on_panic();
            let tokio = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
            // Nobody waits for the task.
            tokio.block_on(async {
                drop(tokio::spawn(async { panic!("a task dies") }));
                tokio::time::sleep(std::time::Duration::from_secs(60)).await;
            });
            return;
        }
        let own = std::env::current_exe().unwrap();
        let status = Command::new(own)
            .args(["--exact", "panics::tests::a_panic_in_any_task_ends_the_process"])
            .env(INSIDE, "1")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert_eq!(status.signal(), Some(6), "{status}");
    }
}
