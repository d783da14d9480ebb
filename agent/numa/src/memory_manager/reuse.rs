//! Memory of init containers that have ended by the time others of their pod need theirs. Pure: owns upstream's account of
//! it. Part of [`super`].

use std::collections::BTreeMap;

use gantry_model::pod::{Container, Pod, PodUid, Role};

use super::MemoryBlock;
use crate::node_mask::NodeMask;

/// Bytes by set of nodes and resource.
pub(super) type OfPod = BTreeMap<NodeMask, BTreeMap<String, u64>>;

/// By pod, until it is over.
#[derive(Debug, Clone, Default)]
pub(super) struct Reusable(BTreeMap<PodUid, OfPod>);

impl Reusable {
    pub(super) fn of(&self, pod: &PodUid) -> &OfPod {
        static NONE: OfPod = OfPod::new();
        self.0.get(pod).unwrap_or(&NONE)
    }

    /// A container has these: one that ends before the next begins leaves them to it, any other uses up what there is.
    pub(super) fn follow(&mut self, pod: &Pod, container: &Container, blocks: &[MemoryBlock]) {
        let sizes = self.0.entry(pod.uid.clone()).or_default();
        for MemoryBlock { nodes, resource, size } in blocks {
            let free = sizes.entry(*nodes).or_default().entry(resource.clone()).or_default();
            *free = match container.role {
                Role::Init => (*free).max(*size),
                _ => free.saturating_sub(*size),
            };
        }
    }

    /// Nothing of the pod is set aside any more.
    pub(super) fn forget(&mut self, pod: &str) {
        self.0.retain(|own, _| own.as_str() != pod);
    }
}

pub(super) fn size(reusable: &OfPod, nodes: NodeMask, resource: &str) -> u64 {
    reusable.get(&nodes).and_then(|sizes| sizes.get(resource)).copied().unwrap_or(0)
}

/// What a container has taken over is its own now, so that the sum over the pod stays what was set aside for it. As
/// upstream, from the first init container on.
pub(super) fn shrink_init_containers(
    containers: &mut BTreeMap<String, Vec<MemoryBlock>>,
    pod: &Pod,
    container: &Container,
    blocks: &[MemoryBlock],
) {
    let before = || pod.init_containers.iter().take_while(|init| init.name != container.name);
    for block in blocks {
        let mut size = block.size;
        for init in before().filter(|init| init.role == Role::Init) {
            let own = containers.get_mut(&init.name).into_iter().flatten();
            for other in own.filter(|own| own.resource == block.resource && own.nodes == block.nodes) {
                let taken = other.size.min(size);
                other.size -= taken;
                size -= taken;
            }
        }
    }
}
