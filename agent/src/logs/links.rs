//! `/var/log/containers`: a link for every container's log, as log collectors expect it. Owns the
//! links' names; never touches a log. Links are made and removed by [`super::dir`]; dead ones go by
//! [`crate::gc::links`].

use gantry_model::pod::Pod;

/// Where collectors look; upstream's, which nothing configures.
pub const FOLDER: &str = "/var/log/containers";

/// What file systems take.
const LONGEST: usize = 255;
pub(crate) const SUFFIX: &str = ".log";
/// Fewer characters of an ID name nothing for certain.
const SHORTEST_ID: usize = 6;

/// `<pod>_<namespace>_<container>-<id>.log`, cut to what a file name may have.
pub(super) fn name(pod: &Pod, container: &str, id: &str) -> String {
    let mut name = format!("{}_{}_{container}-{id}", pod.name, pod.namespace);
    // Names and IDs are ASCII, but nothing here hangs on it.
    while name.len() > LONGEST - SUFFIX.len() {
        name.pop();
    }
    name + SUFFIX
}

/// The ID in a link's name, or what a cut has left of it.
pub(crate) fn id_of(name: &str) -> Option<&str> {
    let (_, id) = name.strip_suffix(SUFFIX)?.rsplit_once('-')?;
    Some(id).filter(|id| id.len() >= SHORTEST_ID)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::tests::pod;

    #[test]
    fn names_are_cut_to_what_a_file_may_be_called() {
        assert_eq!(name(&pod(), "web", "c0ffee"), "web_default_web-c0ffee.log");
        let pod = Pod { name: "p".repeat(253), ..pod() };
        let cut = name(&pod, "web", "c0ffee");
        assert_eq!(cut.len(), 255);
        assert!(cut.ends_with("p.log"), "{cut}");
        assert_eq!(id_of("web_default_web-c0ffee.log"), Some("c0ffee"));
        assert_eq!(id_of("web_default_web-c0f.log"), None);
        assert_eq!(id_of("web-c0ffee.txt"), None);
    }
}
