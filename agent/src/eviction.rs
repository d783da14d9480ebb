//! A node that runs short defends itself: it frees what nobody needs, then ends one pod at a time until there is
//! enough again. Before that it ends each pod that keeps more on the node's disk than its limits allow. Owns the loop's order; never measures anything itself, and never ends a static or critical pod.
//! Started by the kubelet's wiring.
//!
//! what there is: [`observe`] (types, and the trait that measures) · decide: [`decide`] which thresholds count,
//! [`rank`] who goes, [`limits`] who exceeds limits of local storage, [`message`] what is said (all pure) · do: [`run`]
//!
//! ```text
//! look ──▶ end pods above their limits ──▶ thresholds met? ──▶ grace over? ──▶ free what nobody needs, look again ──▶ end one pod, wait for its end
//!   ▲           └─▶ node conditions                        └─ enough ─┐                        │
//!   └────────────── 10 s ─────────────────────────────────────────────┴────────────────────────┘ at once
//! ```

pub(crate) mod decide;
pub(crate) mod limits;
pub(crate) mod message;
pub(crate) mod observe;
pub(crate) mod rank;
pub(crate) mod run;

#[cfg(test)]
mod tests;
