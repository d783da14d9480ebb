//! Garbage of a network: attachments whose sandbox is gone, and what their plugins left.
//!
//! Owns the choice of what is garbage, in two steps: cached attachments that are the caller's and not valid are DELeted
//! with the configuration that they were ADDed with; then, since version 1.1.0 of the specification, each plugin is told
//! what is valid. Attachments that another runtime cached in the same folder are valid by definition: two runtimes may
//! share a node while an operator changes from one to the other. Called by the runtime when it starts, before it serves.

use std::path::Path;

use gantry_base::error::chain;

use super::cache::{self, CachedAttachment};
use super::error::{self, PluginErrorKind};
use super::{Attachment, Conflist, Dirs, Error, ValidAttachment, del};

/// Every attachment in the cache, whoever made it.
///
/// # Errors
/// When the cache's folder cannot be read.
pub fn cached_attachments(dirs: &Dirs) -> Result<Vec<CachedAttachment>, Error> {
    cache::attachments(&dirs.cache_dir)
        .map_err(|source| Error::ListCache { source: PluginErrorKind::from(source).into() })
}

/// Removes what no valid attachment of the network needs. `is_ours` says of a cached attachment whether the caller made
/// it. Does nothing when the list says `disableGC`.
///
/// # Errors
/// All that could not be removed, after everything else was.
pub fn gc(
    list: &Conflist,
    valid: &[ValidAttachment],
    dirs: &Dirs,
    is_ours: &dyn Fn(&CachedAttachment) -> bool,
) -> Result<(), Error> {
    if list.flag("disableGC") {
        return Ok(());
    }
    let failed = |plugin: &str, source: PluginErrorKind| Error::Gc {
        network: list.name().into(),
        plugin: plugin.into(),
        source: source.into(),
    };
    let cached = cached_attachments(dirs)?;
    let mut keep = valid.to_vec();
    let mut errors = Vec::new();
    for cached in cached.iter().filter(|cached| cached.network_name == list.name()) {
        let attachment = cached.attachment();
        if valid.contains(&attachment) {
            continue;
        }
        if !is_ours(cached) {
            keep.push(attachment);
            continue;
        }
        tracing::info!(
            container_id = cached.container_id,
            network = cached.network_name,
            "detaching a sandbox that is gone"
        );
        if let Err(error) = remove(cached, dirs) {
            // What DEL could not remove, GC may not take as removed.
            keep.push(attachment);
            errors.push(error);
        }
    }
    if !list.is_older_than("1.1.0") {
        for plugin in super::parse(list, None, dirs)? {
            match plugin.gc(list.name(), dirs.home(), &keep) {
                Err(PluginErrorKind::Exec(error)) if error.is_missing() => {
                    tracing::warn!("GC goes on without a plugin: {}", chain(&error));
                }
                Err(source) => errors.push(failed(plugin.name(), source)),
                Ok(()) => {}
            }
        }
    }
    error::all(errors)
}

fn remove(cached: &CachedAttachment, dirs: &Dirs) -> Result<(), Error> {
    let list = cached.conflist().map_err(|source| Error::Gc {
        network: cached.network_name.clone(),
        plugin: "cache".into(),
        source: PluginErrorKind::Conflist(source).into(),
    })?;
    let attachment = Attachment {
        container_id: &cached.container_id,
        netns: Path::new(&cached.netns),
        ifname: &cached.if_name,
        args: cached.cni_args.clone(),
        capabilities: cached.capability_args.clone(),
    };
    del(&list, &attachment, dirs)
}
