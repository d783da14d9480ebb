//! What a container is started with: everything that its description refers to is looked up and
//! expanded. Owns the order of the environment and the wording of what is missing; never calls the
//! runtime. Called by [`super::run`] right before a container is created.

mod environment;
mod user;

use std::collections::BTreeMap;

use super::history::Trouble;
use super::run::Deps;
use super::spec::env::EnvValue;
use super::spec::{Container, Pod};
use crate::manifest::expand::expand;
use crate::runtime::Setup;
use crate::volumes::PodFacts;

/// Looks everything up.
///
/// # Errors
/// As CreateContainerConfigError, naming what is missing.
pub(super) async fn configure(
    _deps: &Deps,
    _pod: &Pod,
    container: &Container,
    _facts: &PodFacts,
) -> Result<Setup, Trouble> {
    let mut env: Vec<(String, String)> = Vec::with_capacity(container.env.len());
    for variable in &container.env {
        let EnvValue::Literal(text) = &variable.value else {
            return Err(Trouble {
                reason: "CreateContainerConfigError".to_owned(),
                message: format!("env {}: valueFrom is not supported", variable.name),
            });
        };
        let value = expand(text, &known(&env));
        match env.iter_mut().find(|(name, _)| *name == variable.name) {
            Some(entry) => entry.1 = value,
            None => env.push((variable.name.clone(), value)),
        }
    }
    let all = |list: &[String]| list.iter().map(|text| expand(text, &known(&env))).collect();
    Ok(Setup { command: all(&container.command), args: all(&container.args), mounts: Vec::new(), env })
}

fn known(env: &[(String, String)]) -> BTreeMap<&str, &str> {
    env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
}
