//! Why a pod does not get on: cause and remedy, from what is observed of it now. Owns the order
//! look → decide; the looking is in [`look`], the deciding in [`decide`] and the others below it. Never
//! changes anything. Called by the operator API for `gantry explain`.

mod claims;
pub(crate) mod decide;
mod devices;
mod endings;
pub(crate) mod look;
mod pulls;
mod resizes;
mod shutdown;
mod volumes;

/// What is wrong and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The container it is about; the pod itself when empty.
    pub container: String,
    /// The state it explains, as `kubectl get pods` would show it.
    pub state: String,
    /// What is behind it.
    pub cause: String,
    /// What to do.
    pub remedy: String,
    /// What was looked at, a line each.
    pub evidence: Vec<String>,
}
