//! How far the machine's shutdown has come, as the kubelet's parts tell each other. Pure: owns the type. Set by the
//! agent's shutdown, read by admission and by who tells of the node.

/// Where the machine is on its way down.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Shutdown {
    /// It stays up.
    #[default]
    Not,
    /// Pods are being ended.
    Ending,
    /// Pods have had their time: nothing delays it any more.
    Over,
}

impl Shutdown {
    /// Whether it goes down.
    #[must_use]
    pub fn is_on(self) -> bool {
        self != Self::Not
    }
}
