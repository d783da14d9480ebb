//! A node that runs short defends itself: it frees what nobody needs, then ends one pod at a time until there is
//! enough again. Before that it ends each pod that keeps more on the node's disk than its limits allow. Owns the loop's
//! order; never measures anything itself, and never ends a static or critical pod. Started by the kubelet's wiring.
//!
//! what there is: [`observe`] (types, and the trait that measures) · decide: [`decide`] which thresholds count,
//! [`limits`] who keeps too much on the disk, [`rank`] who goes, [`message`] what is said (all pure) · do: [`run`]
//!
//! Each 10 s, and at once after a pod was ended:
//! 1. Look, and tell the node's conditions.
//! 2. End each pod above its limits. If there was one, wait for their ends and begin again.
//! 3. Where a threshold is met and its grace is over, free what nobody needs and look again.
//! 4. Where there is still too little, end one pod, wait for its end and begin again.

pub(crate) mod decide;
pub(crate) mod limits;
pub(crate) mod message;
pub(crate) mod observe;
pub(crate) mod rank;
pub(crate) mod run;

#[cfg(test)]
mod tests;
