//! Pods that an agent left when it ended without them, as far as its folders tell. Owns the words about
//! them; never touches one. Called by ps and down.

use std::path::Path;

use gantry_agent::root;
use gantry_base::flock::LockHolder;
use gantry_proto::operator::Pod;
use tokio::net::UnixStream;

/// Where `gantry run` keeps what it has of pods, unless told otherwise.
const ROOT: &str = "/var/lib/gantry/kubelet";
const LOGS: &str = "/var/log/pods";

/// The error, and what the usual folders tell of pods that nobody looks after.
pub(crate) fn told(error: anyhow::Error) -> anyhow::Error {
    match words(&names(Path::new(ROOT), Path::new(LOGS))) {
        Some(words) => anyhow::anyhow!("{error:#}\n{words}"),
        None => error,
    }
}

/// Where no agent works any more.
pub(crate) fn after_the_end() -> Option<String> {
    words(&names(Path::new(ROOT), Path::new(LOGS)))
}

/// Where the agent that serves at `socket` works in the usual folder, and has only these pods.
pub(crate) async fn beside(socket: &Path, pods: &[Pod]) -> Option<String> {
    let agent = UnixStream::connect(socket).await.ok()?.peer_cred().ok()?.pid()?;
    words(&names_beside(Path::new(ROOT), Path::new(LOGS), u32::try_from(agent).ok()?, pods))
}

/// `2 pods are without an agent: a/b, c/d; …`.
fn words(names: &[String]) -> Option<String> {
    let pods = match names.len() {
        0 => return None,
        1 => "1 pod is".to_owned(),
        count => format!("{count} pods are"),
    };
    Some(format!(
        "{pods} without an agent: {}; `gantry run` on the same files takes them up again, and Ctrl-C or \
         `gantry down` ends them then",
        names.join(", ")
    ))
}

/// Namespace and name of each pod that the agent of this root folder has not brought to its end. None
/// while an agent works there: it looks after them, wherever its socket is.
fn names(root: &Path, logs: &Path) -> Vec<String> {
    if root::is_taken(root) {
        return Vec::new();
    }
    claimed(root, logs)
}

/// The same while the process `agent` works there and has these.
fn names_beside(root: &Path, logs: &Path, agent: u32, pods: &[Pod]) -> Vec<String> {
    if !matches!(root::holder(root), Some(LockHolder::Process { pid, .. }) if pid == agent) {
        return Vec::new();
    }
    let mut names = claimed(root, logs);
    names.retain(|name| !pods.iter().any(|pod| *name == format!("{}/{}", pod.namespace, pod.name)));
    names
}

fn claimed(root: &Path, logs: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(logs) else { return Vec::new() };
    let claims = root::claims_of(root);
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| {
            let folder = entry.file_name().into_string().ok()?;
            let mut parts = folder.splitn(3, '_');
            let (namespace, name, uid) = (parts.next()?, parts.next()?, parts.next()?);
            claims.join(uid).is_file().then(|| format!("{namespace}/{name}"))
        })
        .collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;
    use gantry_agent::root::Root;

    #[test]
    fn pods_without_an_agent_are_named_and_no_others() {
        let folder = std::env::temp_dir().join(format!("gantry-left-{}", std::process::id()));
        let (root, logs) = (folder.join("root"), folder.join("logs"));
        assert_eq!(names(&root, &logs), Vec::<String>::new());
        let agent = Root::open(&root).unwrap();
        std::fs::create_dir(agent.claims()).unwrap();
        for (claim, log) in [("u1", "default_web_u1"), ("u2", "shop_db_u2")] {
            std::fs::write(agent.claims().join(claim), "run").unwrap();
            std::fs::create_dir_all(logs.join(log)).unwrap();
        }
        // Of a kubelet, and one whose logs are gone.
        std::fs::create_dir(logs.join("kube-system_dns_u3")).unwrap();
        std::fs::write(agent.claims().join("u4"), "run").unwrap();
        assert_eq!(names(&root, &logs), Vec::<String>::new(), "an agent has them");
        let own = std::process::id();
        let db = Pod { namespace: "shop".into(), name: "db".into(), ..Pod::default() };
        assert_eq!(names_beside(&root, &logs, own, &[db]), ["default/web"]);
        assert_eq!(names_beside(&root, &logs, own + 1, &[]), Vec::<String>::new(), "another agent's");
        drop(agent);
        assert_eq!(names(&root, &logs), ["default/web", "shop/db"]);
        assert_eq!(words(&[]), None);
        let text = words(&names(&root, &logs)).unwrap();
        assert!(
            text.starts_with("2 pods are without an agent: default/web, shop/db; `gantry run`"),
            "{text}"
        );
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
