//! `gantry doctor`: whether this machine can run pods, and what to do when it cannot. Owns asking
//! and printing; the judging is in [`judge`], the looking in [`look`], [`plugins`] and [`store`]. Never changes anything.
//! Called by main.

pub(crate) mod join;
mod judge;
mod look;
mod plugins;
mod store;

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use crate::args::{DoctorArgs, ListFormat};
use crate::output;
use crate::output::colour::{self, Colour};

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "UPPERCASE")]
pub(crate) enum CheckStatus {
    /// As it should be.
    Ok,
    /// Pods run, something is less than it could be.
    Warn,
    /// Pods will not run.
    Fail,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Check {
    pub(crate) name: &'static str,
    pub(crate) verdict: CheckStatus,
    /// What was seen.
    pub(crate) seen: String,
    /// What to do; empty when it is as it should be.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) remedy: String,
}

/// Prints every check; fails when one of them does. What a join makes of a thing counts more than what pods alone do.
pub(crate) async fn doctor(args: DoctorArgs) -> Result<ExitCode> {
    let DoctorArgs {
        output: format,
        registry,
        join,
        token,
        discovery_token_ca_cert_hash: hashes,
        deep,
        root_dir,
        flags,
    } = args;
    let facts = look::machine(&flags);
    let mut checks = judge::machine(&facts);
    checks.extend(plugins::checks(&root_dir).await);
    for host in registry {
        let answer = look::registry(&host).await;
        checks.push(judge::registry(&host, answer));
    }
    if let Some(endpoint) = join {
        let target = join::JoinTarget { endpoint, token, hashes };
        let runtime = format!("unix://{}", flags.state.join("gantry.sock").display());
        let rows = join::checks(&target, &join::HostView::here(runtime, facts.network)).await;
        checks.retain(|check| rows.iter().all(|row| row.name != check.name));
        checks.extend(rows);
    }
    if deep {
        checks.extend(judge::store(&store::look(flags).await));
    }
    let text = match format {
        ListFormat::Table | ListFormat::Wide => table(&checks),
        ListFormat::Json => output::json(&checks)?,
        ListFormat::Yaml => output::yaml(&checks)?,
    };
    output::print(text.as_bytes())?;
    let failed = checks.iter().any(|check| check.verdict == CheckStatus::Fail);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn table(checks: &[Check]) -> String {
    let word = |verdict| match verdict {
        CheckStatus::Ok => "ok",
        CheckStatus::Warn => "WARN",
        CheckStatus::Fail => "FAIL",
    };
    let rows: Vec<Vec<String>> = checks
        .iter()
        .map(|check| {
            let mut seen = output::one_line(&check.seen);
            if !check.remedy.is_empty() {
                seen = format!("{seen}: {}", check.remedy);
            }
            vec![word(check.verdict).to_owned(), check.name.to_owned(), seen]
        })
        .collect();
    let count = |verdict, word: &str| {
        let number = checks.iter().filter(|check| check.verdict == verdict).count();
        format!("{number} {word}{}", if number == 1 { "" } else { "s" })
    };
    let (warnings, failures) = (count(CheckStatus::Warn, "warning"), count(CheckStatus::Fail, "failure"));
    let colourful = colour::wanted();
    let table = output::table_in_colours(&rows, |column, cell| match cell {
        "WARN" if colourful && column == 0 => Some(Colour::Yellow),
        "FAIL" if colourful && column == 0 => Some(Colour::Red),
        _ => None,
    });
    format!("{table}{} checks, {warnings}, {failures}\n", checks.len())
}
