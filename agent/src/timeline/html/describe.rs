//! What each stage is, in a sentence. Owns the words only. Shown by the page when one points at a stage.

/// For stages by their whole name; where a layer or plugin stands in it, `*`.
const WORDS: [(&str, &str); 36] = [
    ("seen", "The agent learned of the pod."),
    ("admitted", "The pod fits on this node and was admitted."),
    ("agent.predecessors", "Looking for an earlier pod of this name, and waiting until it is gone."),
    ("agent.recall", "Reading what an earlier agent kept of this pod."),
    ("agent.turn", "The agent's own work between two stages."),
    ("cgroup", "Making the pod's cgroup with its limits."),
    ("volumes", "Making the pod's volumes and writing what they hold."),
    ("volumes.attach", "Waiting until the controller has attached the volume to this node."),
    ("volumes.stage", "The CSI driver mounts the volume once for all pods of this node."),
    ("volumes.publish", "The CSI driver mounts the volume for the pod."),
    ("image", "Finding the container's image on this node, or pulling it."),
    ("image.resolve", "Asking the registry for the image's manifest."),
    ("image.config", "Fetching the image's configuration."),
    ("image.layer.*.download", "Downloading a layer and verifying its digest."),
    ("image.layer.*.unpack", "Unpacking a layer while it comes, and verifying its content."),
    ("image.commit", "Entering the image into this node's index."),
    ("image.failed", "The pull failed and is tried again."),
    ("sandbox", "Making the pod's sandbox: namespaces, network, monitor."),
    ("sandbox.monitor", "Starting the process that looks after the pod's containers."),
    ("sandbox.netns", "Making the pod's network namespace."),
    ("sandbox.cni", "Running the network plugins."),
    ("sandbox.cni.*", "One network plugin."),
    ("sandbox.pause", "Starting the process that holds the pod's namespaces."),
    ("container.create", "Checking the container's configuration. There is no process yet."),
    ("sandbox.users", "Making the pod's user namespace."),
    ("container.start", "Starting the container's process."),
    ("container.start.cgroup", "Making the container's cgroup with its limits."),
    ("container.start.clone", "Cloning the process into its namespaces, and setting it up there."),
    ("container.run", "An init container at work, until it ends."),
    ("container.backoff", "The container ended. It waits to be started again."),
    ("probe.startup", "Waiting until the startup probe succeeds."),
    ("probe.readiness", "Waiting until the readiness probe succeeds."),
    ("image.layer.*.present", "The layer is on this node already."),
    ("ready", "Every container is ready, and so is the pod."),
    ("container.create.*", "A part of making the container."),
    ("container.start.*", "A part of the container's start."),
];

/// Empty for a stage that nobody has described.
pub(super) fn describe(stage: &str) -> &'static str {
    let fits = |pattern: &str| match pattern.split_once('*') {
        Some((before, after)) => {
            stage.len() > before.len() + after.len() && stage.starts_with(before) && stage.ends_with(after)
        }
        None => pattern == stage,
    };
    WORDS.iter().find(|(pattern, _)| fits(pattern)).map_or("", |(_, words)| words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_described_by_their_name() {
        assert!(describe("image.layer.12.download").starts_with("Downloading a layer"));
        assert!(describe("sandbox.cni.host-local").starts_with("One network plugin"));
        assert!(describe("sandbox.cni").starts_with("Running the network"));
        assert_eq!(describe("image.layer.download"), "");
        assert_eq!(describe("sandboxed"), "");
    }
}
