//! No tree of pods: the runtime chooses where each sandbox's cgroup goes, as with cgroupsPerQOS off.
//! Owns nothing.

use futures_util::future::{BoxFuture, ready};

use super::{Cgroups, Error};
use crate::pod::spec::{Pod, PodUid};

/// Makes nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct WithoutTree;

impl Cgroups for WithoutTree {
    fn set_up<'a>(&'a self, _pod: &'a Pod) -> BoxFuture<'a, Result<String, Error>> {
        Box::pin(ready(Ok(String::new())))
    }

    fn tear_down<'a>(&'a self, _uid: &'a PodUid) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(ready(Ok(())))
    }

    fn known(&self) -> BoxFuture<'_, Result<Vec<PodUid>, Error>> {
        Box::pin(ready(Ok(Vec::new())))
    }
}
