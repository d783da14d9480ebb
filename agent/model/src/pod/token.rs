//! Which token of a service account. Owns the type; never asks for one. Made of a volume or of a pull, asked of
//! `api`. Pure.

use super::PodUid;

/// Which token of a service account is asked for. Two that are equal may share one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenOf {
    /// Of the pod and its service account.
    pub namespace: String,
    /// Of the service account.
    pub service_account: String,
    /// The pod that it ends with.
    pub pod: String,
    /// The pod's.
    pub uid: PodUid,
    /// Whom it is for; the API server itself when empty.
    pub audiences: Vec<String>,
    /// Wanted life, in seconds; the API server may give another.
    pub seconds: i64,
}
