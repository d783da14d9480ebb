//! What it means that the disk did not take what was written. Decides: whether a failed sync is such a loss,
//! and which images go with which layers. Touches nothing. Called by `flush`.
//!
//! Since Linux 5.8 (735e4ae5ba28, "vfs: track per-sb writeback errors and report them to syncfs") a file
//! system remembers that some page of it could not be written, and syncfs tells each open file once, also of
//! what failed before the call. A file opened later hears of it only while nobody else has
//! (`errseq_sample` in lib/errseq.c). On an older kernel nobody hears of a lost page of a file.

use std::collections::HashSet;

use rustix::io::Errno;

use super::record::ImageRecord;

/// What a failed sync says of what was written before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteBackFailure {
    /// Some of it may be lost, and nobody will say so again.
    Lost,
    /// Nothing: the kernel did not do the call.
    NotDone,
}

/// EIO, ENOSPC and EDQUOT are what file systems say. Block layers have more words (`blk_status_to_errno`:
/// ENODATA, EILSEQ, ETIMEDOUT, ENOLINK and others), so whatever the kernel did not say of the call is of the
/// disk.
pub(super) fn judge(errno: Errno) -> WriteBackFailure {
    match errno {
        Errno::BADF | Errno::NOSYS | Errno::PERM | Errno::INTR => WriteBackFailure::NotDone,
        _ => WriteBackFailure::Lost,
    }
}

/// The images that need one of the lost layers, each with the first of these.
pub(super) fn victims<'a>(
    images: impl Iterator<Item = (&'a String, &'a ImageRecord)>,
    lost: &HashSet<&str>,
) -> Vec<(String, String)> {
    let victim = |(id, record): (&String, &ImageRecord)| {
        let layer = record.keys().find(|key| lost.contains(key.as_str()))?;
        Some((id.clone(), layer.clone()))
    };
    images.filter_map(victim).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_disk_says_is_a_loss_and_what_the_call_says_is_none() {
        for errno in [Errno::IO, Errno::NOSPC, Errno::DQUOT, Errno::NODATA, Errno::TIMEDOUT, Errno::ILSEQ] {
            assert_eq!(judge(errno), WriteBackFailure::Lost, "{errno}");
        }
        for errno in [Errno::BADF, Errno::NOSYS, Errno::PERM, Errno::INTR] {
            assert_eq!(judge(errno), WriteBackFailure::NotDone, "{errno}");
        }
    }

    #[test]
    fn an_image_goes_with_any_of_its_layers_the_fix_up_layer_too() {
        let image = |layers: &[&str], fixup: Option<&str>| ImageRecord {
            manifest_digest: String::new(),
            manifest: String::new(),
            config: String::new(),
            diff_ids: layers.iter().map(|key| (*key).to_owned()).collect(),
            size: 0,
            fixup: fixup.map(str::to_owned),
        };
        let images = [
            ("i".to_owned(), image(&["a", "b"], None)),
            ("j".to_owned(), image(&["a"], Some("f"))),
            ("k".to_owned(), image(&["a"], None)),
        ];
        let found = victims(images.iter().map(|(id, record)| (id, record)), &HashSet::from(["b", "f"]));
        let pair = |id: &str, layer: &str| (id.to_owned(), layer.to_owned());
        assert_eq!(found, [pair("i", "b"), pair("j", "f")]);
    }
}
