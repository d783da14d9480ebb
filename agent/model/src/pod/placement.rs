//! What a pod asks of the node it is on. Owns the types; never compares them with a node (that is
//! `admission`). Pure.

use std::collections::BTreeMap;

/// From which on a pod is critical: scheduling.SystemCriticalPriority.
pub const SYSTEM_CRITICAL: i32 = 2_000_000_000;

/// Labels, taints, operating system, importance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Placement {
    /// Labels that the node must have.
    pub node_selector: BTreeMap<String, String>,
    /// Any one of these must match, when there are any required ones.
    pub affinity: Option<Vec<Term>>,
    /// Taints that it bears.
    pub tolerations: Vec<Toleration>,
    /// `linux` and the like; any when empty.
    pub os: String,
    /// As the API server made it of the class.
    pub priority: Option<i32>,
}

/// All of these must match.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Term {
    /// On the node's labels.
    pub labels: Vec<Match>,
    /// On the node's fields, which is `metadata.name`.
    pub fields: Vec<Match>,
}

/// One condition on a label or field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Match {
    /// Whose value.
    pub key: String,
    /// How it is compared.
    pub operator: Operator,
    /// With what.
    pub values: Vec<String>,
}

/// As in NodeSelectorRequirement.operator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
    Gt,
    Lt,
}

impl Operator {
    /// By the API's names.
    pub const ALL: [(&'static str, Self); 6] = [
        ("In", Self::In),
        ("NotIn", Self::NotIn),
        ("Exists", Self::Exists),
        ("DoesNotExist", Self::DoesNotExist),
        ("Gt", Self::Gt),
        ("Lt", Self::Lt),
    ];
}

/// As in Toleration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Toleration {
    /// Every taint when empty.
    pub key: String,
    /// Whatever the taint's value.
    pub exists: bool,
    /// The taint's value, unless `exists`.
    pub value: String,
    /// Every effect when empty.
    pub effect: String,
}
