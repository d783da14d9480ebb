//! Pods that are added to an agent that runs already: a second `gantry run`, `gantry apply -f` and `gantry delete -f`.

use std::path::Path;
use std::process::Output;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gantry_tests::leakcheck::{Scope, Snapshot};
use gantry_tests::node::Roots;
use gantry_tests::place;
use gantry_tests::poll::poll;
use gantry_tests::ready::web_image;
use gantry_tests::registry::Registry;
use gantry_tests::standalone::{Standalone, run_command};

fn manifest(image: &str, name: &str, says: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{word: {says}}}\n---\n\
         apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, annotations: {{says: {says}}}}}\nspec:\n  \
         terminationGracePeriodSeconds: 1\n  containers:\n  - name: c\n    image: {image}\n    \
         command: [/bin/sh, -c, \"echo $WORD; exec sleep 1000\"]\n    \
         env: [{{name: WORD, valueFrom: {{configMapKeyRef: {{name: {name}, key: word}}}}}}]\n"
    )
}

/// `gantry run FILE` on the roots of an agent that runs.
fn second(roots: &Roots, file: &Path) -> Result<Output> {
    run_command(roots, file)?.output().context("run gantry run")
}

fn output_text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn await_word(run: &Standalone, pod: &str, word: &str) -> Result<()> {
    poll("the word in gantry logs", Duration::from_secs(60), || {
        let text = run.gantry_ok("logs", &[pod]).map_err(|error| format!("{error:#}"))?;
        if text.trim() == word { Ok(()) } else { Err(text) }
    })
}

#[test]
fn a_second_run_adds_its_pods_to_the_first() -> Result<()> {
    place::require_own_namespaces()?;
    let registry = Registry::start()?;
    let image = registry.push("demo/web", "v1", &web_image()?.build()?)?;
    let roots = Roots::new()?;
    let scope = Scope { folders: Vec::new(), ..roots.scope() };
    let before = Snapshot::take(&scope)?;
    let mut run = Standalone::start(roots, &manifest(&image, "first", "one"))?;
    await_word(&run, "first", "one")?;

    let file = run.roots().path("second.yaml");
    let path = file.to_string_lossy().into_owned();
    std::fs::write(&file, manifest(&image, "second", "two"))?;
    let output = second(run.roots(), &file)?;
    ensure!(output.status.success(), "{}", output_text(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "configmap/second created\npod/second created\n");
    await_word(&run, "second", "two")?;
    let output = second(run.roots(), &file)?;
    assert_eq!(String::from_utf8_lossy(&output.stdout), "configmap/second unchanged\npod/second unchanged\n");

    // Another description: only `apply` replaces what runs.
    std::fs::write(&file, manifest(&image, "second", "three"))?;
    let output = second(run.roots(), &file)?;
    ensure!(
        !output.status.success() && output_text(&output).contains("gantry apply -f"),
        "{}",
        output_text(&output)
    );
    let text = run.gantry_ok("apply", &["-f", &path])?;
    assert_eq!(text, "configmap/second configured\npod/second configured\n");
    await_word(&run, "second", "three")?;

    let text = run.gantry_ok("delete", &["-f", &path])?;
    ensure!(text.starts_with("pod default/second stopped and removed"), "{text}");
    // It comes again when it is asked for again.
    run.gantry_ok("apply", &["-f", &path])?;
    await_word(&run, "second", "three")?;
    run.gantry_ok("stop", &["first", "second", "--grace=0"])?;
    run.await_end()?;
    drop(run);
    before.await_clean(&scope)
}
