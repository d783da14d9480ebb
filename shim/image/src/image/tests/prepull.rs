//! Images that are wanted before any pod.

use super::archive::PushedLayer;
use super::*;
use crate::image::prepull;

#[tokio::test]
async fn what_is_missing_is_asked_for_until_it_comes_and_what_is_here_is_not() {
    let (node, registry) = (TestNode::new(), Registry::new());
    let layers = [PushedLayer::gzip(&Archive::new().file("top", b"x"))];
    registry.image("a", "1", &layers, "A=b");
    let names = ["a:1", "b:1"].map(|name| Reference::parse(&registry.name(name)).unwrap());
    let run = || {
        let pause = Duration::from_millis(5);
        tokio::spawn(prepull::run(node.images.clone(), names.to_vec(), pause))
    };
    let asked = |of: &str| registry.log().iter().filter(|request| request.path.contains(of)).count();
    let running = run();
    until("b asked for twice", || asked("/b/manifests/") >= 2).await;
    assert_eq!(asked("/a/manifests/"), 1, "it came at once");
    registry.image("b", "1", &layers, "B=c");
    tokio::time::timeout(Duration::from_secs(60), running).await.expect("both are here").unwrap();
    assert!(names.iter().all(|name| node.images.find(&name.to_string()).is_some()));
    let before = registry.log().len();
    tokio::time::timeout(Duration::from_secs(60), run()).await.expect("nothing to do").unwrap();
    assert_eq!(registry.log().len(), before, "images that are here are not asked for");
}
