//! Finding an image by what a caller calls it. Pure. Called by `store`.

use std::collections::BTreeMap;

use crate::image::reference::Reference;

/// What `crictl` prints, and enough not to meet another image by chance.
const SHORTEST_ID: usize = 12;

/// The id of the image that `wanted` means: a name (familiar forms allowed), an id with or without
/// `sha256:`, or an id's beginning that fits one image only.
pub(super) fn find<'a>(
    wanted: &str,
    names: &BTreeMap<String, String>,
    ids: impl Iterator<Item = &'a str> + Clone,
) -> Option<String> {
    if let Some(id) = ids.clone().find(|id| *id == wanted) {
        return Some(id.to_owned());
    }
    if let Ok(reference) = Reference::parse(wanted) {
        let name = match reference.digest() {
            Some(digest) => format!("{}@{digest}", reference.repository()),
            None => reference.to_string(),
        };
        if let Some(id) = names.get(&name) {
            return Some(id.clone());
        }
    }
    let hex = wanted.strip_prefix("sha256:").unwrap_or(wanted);
    if hex.len() < SHORTEST_ID || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut fitting = ids.filter(|id| id.strip_prefix("sha256:").is_some_and(|own| own.starts_with(hex)));
    match (fitting.next(), fitting.next()) {
        (Some(id), None) => Some(id.to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_ids_and_beginnings() {
        let one = format!("sha256:{}{}", "ab".repeat(8), "1".repeat(48));
        let two = format!("sha256:{}{}", "ab".repeat(8), "2".repeat(48));
        let digest = format!("sha256:{}", "c".repeat(64));
        let by_digest = format!("localhost:5000/a@{digest}");
        let names = BTreeMap::from([
            ("docker.io/library/busybox:latest".to_owned(), one.clone()),
            ("docker.io/library/busybox:1".to_owned(), two.clone()),
            (by_digest.clone(), two.clone()),
        ]);
        let check = |wanted: &str, want: Option<&String>| {
            let ids = [one.as_str(), two.as_str()];
            assert_eq!(find(wanted, &names, ids.into_iter()).as_ref(), want, "{wanted}");
        };
        check("busybox", Some(&one));
        check("docker.io/library/busybox:1", Some(&two));
        check("busybox:2", None);
        check(&by_digest, Some(&two));
        check(&format!("localhost:5000/a:any@{digest}"), Some(&two));
        check(&format!("localhost:5000/b@{digest}"), None);
        check(&one, Some(&one));
        check(&one["sha256:".len()..], Some(&one));
        check(&one["sha256:".len()..][..17], Some(&one));
        check(&one["sha256:".len()..][..16], None); // fits both
        check(&one["sha256:".len()..][..11], None);
        check(&one[..30], Some(&one));
        check("", None);
    }
}
