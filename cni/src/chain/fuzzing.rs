//! What must hold for any file in the folder of network configurations and in that of cached results. Called by
//! `crate::fuzzing`.

#![expect(clippy::disallowed_methods, reason = "what a fuzzer is fed with")]

use std::fs;
use std::path::Path;

use gantry_base::error::chain;

use super::{Attachment, Conflist, cache};
use crate::fuzzing::place::ScratchFolder;
use crate::result::CniResult;

/// Of a file, in bytes (NAME_MAX of limits.h).
const LONGEST_NAME: usize = 255;

fn put(folder: &Path, name: &str, bytes: &[u8]) {
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(folder.join(name), bytes));
    assert!(written.is_ok(), "{written:?}");
}

/// What lies in a file is what the same text is, as a list and as a single plugin's configuration.
pub(crate) fn check_conflist(text: &str, meant: Option<&Conflist>) {
    let folder = ScratchFolder::new("net.d");
    put(&folder, "10-net.conf", text.as_bytes());
    match (Conflist::load(&folder), meant) {
        (Ok(Some(found)), Some(meant)) => {
            assert_eq!((found.name(), found.raw()), (meant.name(), meant.raw()));
        }
        // No folder for plugins of its own can have its name.
        (Err(error), Some(meant)) if meant.name().len() > LONGEST_NAME => {
            assert!(!chain(&error).is_empty());
        }
        (Err(error), None) => assert!(!chain(&error).is_empty()),
        (found, meant) => unreachable!("{found:?} in a file, {meant:?} as text"),
    }
    // A plugin of a list may lie in a file of its own.
    let folder = ScratchFolder::new("net2.d");
    put(&folder, "10-net.conflist", br#"{"cniVersion":"1.0.0","name":"net","plugins":[]}"#);
    put(&folder.join("net"), "10-own.conf", text.as_bytes());
    if let Ok(Some(list)) = Conflist::load(&folder) {
        assert_eq!(list.plugins().count(), 1);
        assert!(list.flag("loadOnlyInlinedPlugins") && !list.has_capability("bandwidth-of-nobody"));
    }
}

/// A result in the cache: read or refused, never in the way of others'.
pub(crate) fn check_cached(data: &[u8]) {
    let folder = ScratchFolder::new("results");
    let Ok(list) =
        Conflist::parse(r#"{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"bridge"}]}"#, "here")
    else {
        unreachable!("a list that is none")
    };
    let attachment = |container_id| Attachment {
        container_id,
        netns: Path::new("/run/netns/x"),
        ifname: "eth0",
        args: Vec::new(),
        capabilities: [].into(),
    };
    put(&folder, "a-c1-eth0", data);
    let found = cache::read_result(&folder, &list, &attachment("c1"));
    assert!(
        found.is_err() || found.is_ok_and(|found| found.is_some_and(|found| found.cni_version == "1.0.0"))
    );
    // Another's, beside whatever that is.
    let result = CniResult::default().in_version("1.0.0");
    let written = cache::write(&folder, &list, &attachment("c2"), &result);
    assert!(written.is_ok(), "{written:?}");
    assert!(
        matches!(cache::read_result(&folder, &list, &attachment("c2")), Ok(Some(found)) if found == result)
    );
    let all = cache::attachments(&folder).unwrap_or_default();
    assert!(all.iter().any(|found| found.container_id == "c2") && all.len() <= 2);
    let removed = cache::remove(&folder, list.name(), &attachment("c2"));
    assert!(removed.is_ok(), "{removed:?}");
    assert!(matches!(cache::read_result(&folder, &list, &attachment("c2")), Ok(None)));
}
