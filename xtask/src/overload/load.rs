//! The pods: fourteen that keep to what they request, sixteen that take what they can. Owns their objects and their image;
//! never judges them. Called by `overload`.

use anyhow::{Context, Result};
use gantry_tests::image::{Image, Layer};
use gantry_tests::place::bin_dir;
use gantry_tests::registry::Registry;
use serde_json::{Value, json};

/// The label of pods that keep to their requests.
pub(super) const KEEPER: &str = "keeper";
/// Where images come from, by a name that the node's mirrors know.
pub(super) const HOST: &str = "overload.test";
const IMAGE: &str = "overload.test/hog:v1";
pub(super) const PAUSE: &str = "overload.test/pause:v1";

/// Its name, what it runs, its memory request and limit in MiB, how many.
struct Hog {
    name: &'static str,
    words: &'static [&'static str],
    resources: Claim,
    replicas: u32,
}

/// What a container claims, in MiB of memory.
#[derive(Debug, Clone, Copy)]
enum Claim {
    /// Request and limit are one
    Guaranteed(u32),
    /// A request, and perhaps a limit above it
    Burstable(u32, Option<u32>),
    BestEffort,
}

/// Sixteen pods: a hog that was evicted comes back when the node takes pods again.
const HOGS: [Hog; 9] = [
    Hog {
        name: "memory-requested",
        words: &["hog", "memory", "8"],
        resources: Claim::Burstable(32, None),
        replicas: 3,
    },
    Hog {
        name: "memory-limited",
        words: &["hog", "memory", "8"],
        resources: Claim::Burstable(32, Some(96)),
        replicas: 3,
    },
    Hog { name: "memory", words: &["hog", "memory", "16"], resources: Claim::BestEffort, replicas: 2 },
    Hog { name: "disk-layer", words: &["hog", "disk", "/filled"], resources: Claim::BestEffort, replicas: 1 },
    Hog {
        name: "disk-volume",
        words: &["hog", "disk", "/volume"],
        resources: Claim::BestEffort,
        replicas: 1,
    },
    Hog {
        name: "inodes-layer",
        words: &["hog", "inodes", "/filled"],
        resources: Claim::BestEffort,
        replicas: 1,
    },
    Hog {
        name: "inodes-volume",
        words: &["hog", "inodes", "/volume"],
        resources: Claim::BestEffort,
        replicas: 1,
    },
    Hog { name: "pids", words: &["hog", "pids"], resources: Claim::BestEffort, replicas: 3 },
    Hog { name: "log", words: &["hog", "log"], resources: Claim::BestEffort, replicas: 1 },
];

/// Serves the image of all pods, and the pause image.
pub(super) fn push(registry: &Registry) -> Result<()> {
    let read = |name: &str| {
        let path = bin_dir()?.join(name);
        std::fs::read(&path).with_context(|| path.display().to_string())
    };
    let image = |name: &str, program: &str| -> Result<Image> {
        let layer = Layer::default().dir("volume", 0o755).file(name, 0o755, read(program)?);
        Ok(Image { layers: vec![layer], entrypoint: vec![format!("/{name}")], ..Image::default() })
    };
    registry.push("hog", "v1", &image("workload", "gantry-workload")?.build()?)?;
    registry.push("pause", "v1", &image("pause", "gantry-pause")?.build()?)?;
    Ok(())
}

/// Ten Guaranteed pods, which must not be lost, and four Burstable ones. Nobody brings one back.
pub(super) fn keepers() -> Value {
    let guaranteed = (0..10).map(|number| (format!("guaranteed-{number}"), Claim::Guaranteed(32)));
    let burstable = (0..4).map(|number| (format!("burstable-{number}"), Claim::Burstable(32, None)));
    let pods = guaranteed.chain(burstable).map(|(name, resources)| {
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": name, "labels": { "overload": KEEPER } },
            "spec": spec(&["keep", "16"], resources),
        })
    });
    list(&pods.collect::<Vec<_>>())
}

/// The hogs, each kind a Deployment.
pub(super) fn hogs() -> Value {
    let deployments = HOGS.iter().map(|hog| {
        let labels = json!({ "overload": "hog", "hog": hog.name });
        json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": { "name": hog.name },
            "spec": {
                "replicas": hog.replicas,
                "selector": { "matchLabels": { "hog": hog.name } },
                "template": { "metadata": { "labels": labels }, "spec": spec(hog.words, hog.resources) },
            },
        })
    });
    list(&deployments.collect::<Vec<_>>())
}

fn list(items: &[Value]) -> Value {
    json!({ "apiVersion": "v1", "kind": "List", "items": items })
}

fn spec(words: &[&str], claim: Claim) -> Value {
    let of = |cpu: &str, mib: u32| json!({ "cpu": cpu, "memory": format!("{mib}Mi") });
    let resources = match claim {
        // An emulated processor is slow: with less than this a container takes long to start.
        Claim::Guaranteed(mib) => json!({ "requests": of("100m", mib), "limits": of("100m", mib) }),
        Claim::Burstable(mib, None) => json!({ "requests": of("20m", mib) }),
        Claim::Burstable(mib, Some(most)) => {
            json!({ "requests": of("20m", mib), "limits": { "memory": format!("{most}Mi") } })
        }
        Claim::BestEffort => json!({}),
    };
    json!({
        // A hog does not end by itself.
        "terminationGracePeriodSeconds": 5,
        "containers": [{
            "name": "main",
            "image": IMAGE,
            "args": words,
            "resources": resources,
            "volumeMounts": [{ "name": "volume", "mountPath": "/volume" }],
        }],
        "volumes": [{ "name": "volume", "emptyDir": {} }],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_thirty_pods_of_three_classes() {
        let count = |objects: &Value| objects["items"].as_array().map_or(0, Vec::len);
        let wanted: u32 = HOGS.iter().map(|hog| hog.replicas).sum();
        assert_eq!((count(&keepers()), count(&hogs()), wanted), (14, 9, 16));
        let guaranteed = &keepers()["items"][0]["spec"]["containers"][0]["resources"];
        assert_eq!(guaranteed["requests"], guaranteed["limits"]);
    }
}
