//! How full a volume is, as its driver tells. Owns the type; made by the agent's part for CSI, shown by the kubelet's API.
//! Pure.

/// Bytes and inodes of a volume; none of what its driver does not tell (NodeGetVolumeStats of CSI).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeUsage {
    /// Who told it.
    pub driver: String,
    /// Bytes that may be written yet.
    pub available_bytes: Option<u64>,
    /// Bytes in all.
    pub capacity_bytes: Option<u64>,
    /// Bytes in use.
    pub used_bytes: Option<u64>,
    /// Inodes that are free.
    pub inodes_free: Option<u64>,
    /// Inodes in all.
    pub inodes: Option<u64>,
    /// Inodes in use.
    pub inodes_used: Option<u64>,
}
