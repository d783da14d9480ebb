//! Taints as `--register-with-taints` and the configuration write them. Pure: owns the syntax and
//! its checks; never what a taint does. Called by the flags and the validation.

use serde_json::{Value, json};

use super::fields::Taint;

const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];

/// `key=value:Effect,key:Effect`; nothing is no taint.
pub(super) fn parse_list(text: &str) -> Result<Value, String> {
    let mut found: Vec<Value> = Vec::new();
    if text.is_empty() {
        return Ok(found.into());
    }
    for spec in text.split(',') {
        let wrong = || format!("invalid taint spec: {spec}");
        let (key, effect) = spec.split_once(':').ok_or_else(wrong)?;
        if effect.contains(':') {
            return Err(wrong());
        }
        let (key, value) = key.split_once('=').unwrap_or((key, ""));
        let taint = Taint {
            key: key.to_owned(),
            value: value.to_owned(),
            effect: effect.to_owned(),
            time_added: None,
        };
        if let Some(problem) = problem(&taint) {
            return Err(format!("{}: {problem}", wrong()));
        }
        let taint = if value.is_empty() {
            json!({ "key": key, "effect": effect })
        } else {
            json!({ "key": key, "value": value, "effect": effect })
        };
        if found.iter().any(|seen| seen["key"] == taint["key"] && seen["effect"] == taint["effect"]) {
            return Err(format!("duplicated taints with the same key and effect: {spec}"));
        }
        found.push(taint);
    }
    Ok(found.into())
}

/// What is wrong with a taint.
pub(super) fn problem(taint: &Taint) -> Option<String> {
    if let Some(problem) = super::labels::name_problem(&taint.key) {
        return Some(problem);
    }
    if let Some(problem) = super::labels::value_problem(&taint.value) {
        return Some(problem);
    }
    (!EFFECTS.contains(&taint.effect.as_str()))
        .then(|| format!("unsupported taint effect: {:?}", taint.effect))
}
