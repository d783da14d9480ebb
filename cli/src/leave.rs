//! `gantry leave`: takes a machine out of its cluster, and back what `gantry join` and the cluster have left on it. Owns
//! the order of looking, deciding ([`plan`]), doing ([`undo`]) and telling. Called by main.

mod cgroups;
mod plan;
mod undo;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use gantry_kube_client::identity::kubeconfig;

use self::plan::{HostState, Undo};
use self::undo::Undoer;
use crate::args::LeaveArgs;
use crate::join::record::{self, JoinRecord};
use crate::join::step::{JoinChange, sysctl_path};
use crate::join::{FOREIGN, admin, look};
use crate::output;

/// Leaves, or says what would be done.
///
/// # Errors
/// When nobody has joined, or something stays: then the same command goes on from there.
pub(crate) async fn leave(args: LeaveArgs) -> Result<ExitCode> {
    let record = JoinRecord::read(Path::new(record::PATH))?.with_context(|| {
        format!("nothing to take back: there is no {}, which gantry join writes", record::PATH)
    })?;
    let steps = plan::plan(&record, &now(&record), args.delete_node);
    if args.dry_run {
        let lines: String = steps.iter().map(|step| format!("would {step}\n")).collect();
        output::print(format!("{lines}{}", last_words(&record, args.delete_node)).as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    }
    anyhow::ensure!(
        rustix::process::geteuid().is_root(),
        "only root may take a machine out of a cluster: sudo gantry leave …"
    );
    let admin = match &args.kubeconfig {
        Some(file) => Some(admin::connect(&kubeconfig::read(file)?)?),
        None => None,
    };
    let undoer = Undoer { kubeadm: look::find("kubeadm"), admin };
    let failed = run(&undoer, &steps).await?;
    if failed > 0 {
        output::say(&format!(
            "error: {failed} of {} steps failed: `gantry leave` tries them again",
            steps.len()
        ));
        return Ok(ExitCode::FAILURE);
    }
    undo::forget(Path::new(record::PATH))?;
    output::print(last_words(&record, args.delete_node).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

/// Goes on past errors, but for that of kubeadm: what it has not ended still stands on the rest.
async fn run(undoer: &Undoer, steps: &[Undo]) -> Result<usize> {
    let mut failed = 0;
    for step in steps {
        output::print(format!("{step}\n").as_bytes())?;
        match undoer.step(step).await {
            Err(error) if matches!(step, Undo::JoinChange(JoinChange::Join { .. })) => {
                return Err(error.context("the node still stands: nothing else was taken back"));
            }
            Err(error) => {
                output::say(&format!("error: {error:#}"));
                failed += 1;
            }
            Ok(()) => {}
        }
    }
    Ok(failed)
}

fn last_words(record: &JoinRecord, deleted: bool) -> String {
    let node = &record.node;
    match deleted || !record.joined {
        true => String::new(),
        false => format!("the cluster still has the Node: kubectl delete node {node}\n"),
    }
}

fn now(record: &JoinRecord) -> HostState {
    HostState {
        cni: look::configurations(),
        sysctls: FOREIGN
            .iter()
            .filter_map(|(name, _)| {
                Some((*name, std::fs::read_to_string(sysctl_path(name)).ok()?.trim().to_owned()))
            })
            .collect(),
        folders: record.before.absent.iter().filter(|path| path.is_dir()).cloned().collect::<Vec<PathBuf>>(),
    }
}
