//! `gantry run --manifest-dir` in the foreground: pods come and go with their files.

use std::time::Duration;

use anyhow::Result;
use gantry_tests::leakcheck::{Scope, Snapshot};
use gantry_tests::node::Roots;
use gantry_tests::place;
use gantry_tests::poll::poll;
use gantry_tests::ready::web_image;
use gantry_tests::registry::Registry;
use gantry_tests::standalone::Standalone;

fn pod(name: &str, image: &str, extra: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  containers:\n  - name: web\n    \
         image: {image}\n{extra}"
    )
}

fn await_ps(run: &Standalone, words: &[&str], gone: &[&str]) -> Result<String> {
    poll("gantry ps to show it", Duration::from_secs(60), || {
        let text = run.gantry_ok("ps", &[]).map_err(|error| format!("{error:#}"))?;
        let there = words.iter().all(|word| text.contains(word));
        if there && !gone.iter().any(|word| text.contains(word)) { Ok(text) } else { Err(text) }
    })
}

#[test]
fn pods_of_a_folder_come_and_go_with_their_files_and_bad_ones_are_told() -> Result<()> {
    place::require_own_namespaces()?;
    let registry = Registry::start()?;
    let image = registry.push("demo/web", "v1", &web_image()?.build()?)?;
    let roots = Roots::new()?;
    let scope = Scope { folders: Vec::new(), ..roots.scope() };
    let before = Snapshot::take(&scope)?;
    let folder = roots.path("manifests");
    std::fs::create_dir(&folder)?;
    std::fs::write(folder.join("bad.yaml"), pod("bad", &image, "    imagee: typo\n"))?;
    let mut run = Standalone::start_with(roots, None, &[format!("--manifest-dir={}", folder.display())])?;
    poll("the bad file to be told", Duration::from_secs(20), || {
        let said = run.stderr();
        if said.contains("imagee") && said.contains("bad.yaml") { Ok(()) } else { Err(said) }
    })?;

    std::fs::write(folder.join("one.yaml"), pod("one", &image, ""))?;
    std::fs::write(folder.join("two.yaml"), pod("two", &image, ""))?;
    let text = await_ps(&run, &["one-", "two-"], &["Pending", "ContainerCreating", "0/1"])?;
    let name = |text: &str, begin: &str| {
        text.split_whitespace().find(|word| word.starts_with(begin)).unwrap_or_default().to_owned()
    };
    let (one, two) = (name(&text, "one-"), name(&text, "two-"));

    // One that was stopped stays away, also when others change; a file that goes takes its pod along.
    run.gantry_ok("stop", &[&one])?;
    std::fs::remove_file(folder.join("two.yaml"))?;
    std::fs::write(folder.join("three.yaml"), pod("three", &image, ""))?;
    await_ps(&run, &["three-", "1/1"], &[&one, &two])?;

    run.interrupt()?;
    let status = run.await_end()?;
    assert!(status.success(), "{}", run.stderr());
    assert!(run.stdout().contains("web] listening on port 8080"), "new pods are told of: {}", run.stdout());
    drop(run);
    before.await_clean(&scope)
}
