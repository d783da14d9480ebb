//! A real folder, followed.

use std::fs;

use super::*;

fn text(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: i}}]}}\n"
    )
}

async fn until(found: &mut watch::Receiver<StaticPods>, names: &[&str], problems: usize) {
    let fits = |found: &StaticPods| {
        let mut seen: Vec<&str> = found.pods.iter().map(|pod| pod.name.as_str()).collect();
        seen.sort_unstable();
        seen == names && found.problems.len() == problems
    };
    let waited = tokio::time::timeout(Duration::from_secs(30), found.wait_for(fits)).await;
    assert!(waited.is_ok(), "{names:?}, {problems}");
}

#[tokio::test]
async fn a_folder_is_followed_as_it_changes() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("manifests");
    let path = |name: &str| folder.join(name);
    // Changes are noticed, not waited for: it would be looked at again in an hour only.
    let (mut found, task) = follow(folder.clone(), "n".into(), Duration::from_secs(3600)).await;
    assert_eq!(*found.borrow(), StaticPods { read: true, ..StaticPods::default() });
    task.abort();
    fs::create_dir(&folder).unwrap();
    fs::create_dir(path("sub")).unwrap();
    fs::write(path("sub/x.yaml"), text("x")).unwrap();
    fs::write(path(".hidden.yaml"), text("hidden")).unwrap();
    fs::write(path("a.yaml"), text("a")).unwrap();
    let (followed, task) = follow(folder.clone(), "n".into(), Duration::from_secs(3600)).await;
    found = followed;
    until(&mut found, &["a-n"], 0).await;
    fs::write(path("b.yaml"), "kind: [").unwrap();
    until(&mut found, &["a-n"], 1).await;
    // As editors do.
    fs::write(path(".b.tmp"), text("b")).unwrap();
    fs::rename(path(".b.tmp"), path("b.yaml")).unwrap();
    until(&mut found, &["a-n", "b-n"], 0).await;
    fs::remove_file(path("a.yaml")).unwrap();
    until(&mut found, &["b-n"], 0).await;
    // Whole at once: a file that is read while it is written has a problem of its own.
    fs::write(path(".c.tmp"), format!("{}---\n{}", text("c"), text("d"))).unwrap();
    fs::rename(path(".c.tmp"), path("c.yaml")).unwrap();
    until(&mut found, &["b-n"], 1).await;
    let problem = found.borrow().problems.first().unwrap().message.clone();
    assert_eq!(problem, "more than one object: a static pod has a file of its own");
    drop(found);
    task.await.unwrap();
}

#[tokio::test]
async fn without_a_watch_the_folder_is_looked_at_from_time_to_time() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("later");
    let (mut found, task) = follow(folder.clone(), "n".into(), Duration::from_millis(20)).await;
    fs::create_dir(&folder).unwrap();
    fs::write(folder.join("a.yaml"), text("a")).unwrap();
    until(&mut found, &["a-n"], 0).await;
    fs::remove_dir_all(&folder).unwrap();
    until(&mut found, &[], 0).await;
    drop(found);
    task.await.unwrap();
}

#[tokio::test]
async fn a_file_that_is_removed_and_made_again_at_once_is_another_one() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a.yaml");
    fs::write(&path, text("a")).unwrap();
    let (mut found, task) = follow(root.path().to_owned(), "n".into(), Duration::from_secs(3600)).await;
    until(&mut found, &["a-n"], 0).await;
    // The ear is at the folder once this was heard.
    fs::write(root.path().join("b.yaml"), text("b")).unwrap();
    until(&mut found, &["a-n", "b-n"], 0).await;
    let pod = |found: &StaticPods| found.pods.iter().find(|pod| pod.name == "a-n").cloned();
    let before = pod(&found.borrow()).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, text("a")).unwrap();
    let again = |found: &StaticPods| pod(found).is_some_and(|pod| rules::is_made_again(&before, &pod));
    let heard = tokio::time::timeout(Duration::from_secs(30), found.wait_for(again)).await.is_ok();
    assert!(heard);
    drop(found);
    task.await.unwrap();
}
