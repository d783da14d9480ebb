//! An agent that makes no volumes: pods that have some are refused. Owns nothing. Used where no
//! folder for volumes is configured.

use futures_util::future::{BoxFuture, ready};

use super::{Error, Mount, MountsOf, Volumes};
use crate::pod::spec::{Pod, PodUid};

/// Makes nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct WithoutVolumes;

impl Volumes for WithoutVolumes {
    fn set_up<'a>(&'a self, pod: &'a Pod) -> BoxFuture<'a, Result<(), Error>> {
        let refused = |name: &str| {
            let message = format!(
                "MountVolume.SetUp failed for volume {name:?} : this agent has no folder for volumes"
            );
            Err(Error { message })
        };
        Box::pin(ready(pod.volumes.first().map_or(Ok(()), |volume| refused(&volume.name))))
    }

    fn mounts<'a>(&'a self, _of: MountsOf<'a>) -> BoxFuture<'a, Result<Vec<Mount>, Error>> {
        Box::pin(ready(Ok(Vec::new())))
    }

    fn last_words<'a>(
        &'a self,
        _uid: &'a PodUid,
        _container: &'a str,
        _attempt: u32,
    ) -> BoxFuture<'a, Result<Option<String>, Error>> {
        Box::pin(ready(Ok(None)))
    }

    fn tear_down<'a>(&'a self, _uid: &'a PodUid) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(ready(Ok(())))
    }

    fn known(&self) -> BoxFuture<'_, Result<Vec<PodUid>, Error>> {
        Box::pin(ready(Ok(Vec::new())))
    }
}
