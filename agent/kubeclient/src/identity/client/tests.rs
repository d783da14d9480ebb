//! What needs no server; the rest is tested with one beside the other parts of identity.

use super::*;

#[test]
fn a_path_lies_below_the_servers_own() {
    let at = |server: &str, path: &str| {
        place(&server.parse().unwrap(), &path.parse().unwrap()).unwrap().to_string()
    };
    assert_eq!(at("https://h:6443", "/api/v1/pods?watch=true"), "https://h:6443/api/v1/pods?watch=true");
    assert_eq!(at("https://h:6443/", "/api"), "https://h:6443/api");
    assert_eq!(at("https://h/prefix/", "/api"), "https://h/prefix/api");
}
