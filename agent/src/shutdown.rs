//! The machine goes down, and pods end before it does (upstream's graceful node shutdown). logind waits for whoever
//! holds a delay lock; the kubelet holds one, ends the pods by priority when a shutdown is announced, and lets go.
//! Owns the lock and the order of the end; never stops a container itself. Started by the kubelet's wiring.
//!
//! decide: [`decide`] who goes when, and how long each may take (pure) · what is said: [`words`] (pure) · the bus:
//! [`logind`] (a trait), [`bus`] (the real one) · do: [`run`] listens, [`end`] ends pods · kept: [`record`]
//!
//! Condition, admission and the report of the node follow [`gantry_model::shutdown::Shutdown`]:
//! ```text
//! Not ──PrepareForShutdown(true)──▶ Ending ──every group ended, or had its time──▶ Over, lock released
//!  ▲                                  └───────────────PrepareForShutdown(false), lock taken again──┐
//!  └───────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//! A bus that goes away is looked for again; the lock is held until another one is there.

pub(crate) mod bus;
mod decide;
mod end;
mod logind;
mod record;
pub(crate) mod run;
pub(crate) mod words;

#[cfg(test)]
mod tests;
