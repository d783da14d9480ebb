//! runAsNonRoot. Pure: owns the kubelet's rule and its words; never resolves a user name. Called by
//! [`super::configure`].

use gantry_model::pod::{Container, Pod};

/// Refuses what would run as root, or may.
pub(in crate::pod) fn check(
    pod: &Pod,
    container: &Container,
    image_uid: Option<i64>,
    image_user: &str,
) -> Result<(), String> {
    if !container.security.run_as_non_root {
        return Ok(());
    }
    let of = format!("(pod: {:?}, container: {})", pod.formatted(), container.name);
    // An image without a user runs as root.
    match (container.security.run_as_user, image_uid) {
        (Some(0), _) => Err(format!("container's runAsUser breaks non-root policy {of}")),
        (Some(_), _) => Ok(()),
        (None, None) if !image_user.is_empty() => Err(format!(
            "container has runAsNonRoot and image has non-numeric user ({image_user}), cannot verify user is non-root {of}"
        )),
        (None, None | Some(0)) => Err(format!("container has runAsNonRoot and image will run as root {of}")),
        (None, Some(uid)) if !(1..=i64::from(i32::MAX)).contains(&uid) => Err(format!(
            "container has runAsNonRoot and image has an invalid user id ({uid}). (Must be 1-(2147483647)): must be between 0 and 2147483647, inclusive {of}"
        )),
        (None, Some(_)) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use gantry_model::pod::Security;

    use super::*;
    use crate::pod::tests::{container, pod};

    #[test]
    fn an_image_without_a_user_runs_as_root() {
        let security = Security { run_as_non_root: true, ..Security::default() };
        let refused = check(&pod(), &Container { security, ..container("web") }, None, "").unwrap_err();
        assert!(refused.starts_with("container has runAsNonRoot and image will run as root"), "{refused}");
    }

    #[test]
    fn root_is_refused_in_the_kubelets_words() {
        let of = r#"(pod: "web_default(uid-1)", container: web)"#;
        let run = |non_root, run_as_user, uid, name: &str| {
            let security = Security { run_as_non_root: non_root, run_as_user, ..Security::default() };
            check(&pod(), &Container { security, ..container("web") }, uid, name)
        };
        assert_eq!(run(false, Some(0), Some(0), ""), Ok(()));
        assert_eq!(run(true, Some(5), Some(0), ""), Ok(()));
        assert_eq!(run(true, None, Some(5), ""), Ok(()));
        assert_eq!(
            run(true, Some(0), None, "").unwrap_err(),
            format!("container's runAsUser breaks non-root policy {of}")
        );
        assert_eq!(
            run(true, None, Some(0), "").unwrap_err(),
            format!("container has runAsNonRoot and image will run as root {of}")
        );
        assert_eq!(
            run(true, None, None, "www").unwrap_err(),
            format!(
                "container has runAsNonRoot and image has non-numeric user (www), cannot verify user is non-root {of}"
            )
        );
    }
}
