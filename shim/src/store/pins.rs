//! The layers that containers need, as their records on disk say. Owns which records count. Called by the runtime's start,
//! before anything else reads them.

use std::collections::HashMap;
use std::path::Path;

use super::record;

/// The pins in the records of this boot's containers below `folder`, before anything else reads them: the
/// image store drops what nobody needs when it is opened. A record that can't be read is passed over
/// here; whoever loads the containers says so, and stops.
///
/// Containers of an earlier boot run no more and never start again. They must hold nothing either: a power
/// cut can bring back the record of one that was removed, and redb may then have its layer from before,
/// whose folder is half of a later pull's.
pub(crate) fn on_disk(folder: &Path, boot_id: &str) -> HashMap<String, Vec<String>> {
    #[derive(serde::Deserialize)]
    struct PinRecord {
        id: String,
        boot_id: String,
        #[serde(default)]
        layers: Vec<String>,
    }
    let read = |entry: std::fs::DirEntry| -> Option<(String, Vec<String>)> {
        let text = std::fs::read(entry.path().join(record::FILE)).ok()?;
        let record: PinRecord = serde_json::from_slice(&text).ok()?;
        (record.boot_id == boot_id).then_some((record.id, record.layers))
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(read).filter(|(_, layers)| !layers.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_of_another_boot_hold_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let layers = ["sha256:a".to_owned()].to_vec();
        for (id, boot_id) in [("now", "boot"), ("then", "another")] {
            std::fs::create_dir(folder.path().join(id)).unwrap();
            let record = serde_json::json!({ "id": id, "boot_id": boot_id, "layers": layers });
            std::fs::write(folder.path().join(id).join(record::FILE), record.to_string()).unwrap();
        }
        assert_eq!(on_disk(folder.path(), "boot"), HashMap::from([("now".to_owned(), layers)]));
    }
}
