//! What the managers say of a pod that the node has no room for. Upstream asks them before it looks at the rest, so a pod
//! that both would refuse has their reason. Owns that question; nothing is given. Part of [`super::ResourceManagers`].

use gantry_model::pod::Pod;

use super::ResourceManagers;
use super::accounts::ChangeError;
use crate::admission::Rejection;
use crate::devices::{DeviceManager, Reusable};

impl ResourceManagers {
    /// Whether the pod could be given what it asks for, counted as if it was.
    ///
    /// # Errors
    /// Why it could not.
    pub(crate) fn ask(&self, pod: &Pod, devices: &DeviceManager) -> Result<(), Rejection> {
        if !self.could_give(pod) {
            return Ok(());
        }
        let begun = self.begin_request();
        let given = self.give_on_copy(pod, devices);
        self.end_request(begun, given.is_err());
        given
    }

    fn give_on_copy(&self, pod: &Pod, devices: &DeviceManager) -> Result<(), Rejection> {
        let (mut copy, topology) = (self.snapshot(), self.0.topology.as_ref());
        let of_pod = self.align_pod((topology, &copy), pod, devices)?;
        for container in pod.all_containers() {
            let hint = match of_pod {
                Some(hint) => hint,
                None => self.align_container((topology, &copy), pod, container, devices, &Reusable::new())?,
            };
            let cpus = copy.cpu.allocate(pod, container, hint).map_err(ChangeError::Refused);
            let memory = &mut copy.memory;
            self.0
                .count_both(cpus, || memory.allocate(pod, container, hint).map_err(ChangeError::Refused))?;
            if of_pod.is_none() {
                self.count_aligned(topology, "container");
            }
        }
        if of_pod.is_some() {
            self.count_aligned(topology, "pod");
        }
        Ok(())
    }
}
