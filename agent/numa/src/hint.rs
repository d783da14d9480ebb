//! What a manager says of the NUMA nodes that it could give a container something of. Pure. Given by the managers, merged by
//! the topology manager's policies.

use std::collections::BTreeMap;

use crate::node_mask::NodeMask;

/// One way to give a resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct TopologyHint {
    /// None: on any.
    pub nodes: Option<NodeMask>,
    /// No other way uses fewer nodes.
    pub preferred: bool,
}

/// The ways for each resource. None: the manager does not mind where. Empty: there is no way.
pub type Hints = BTreeMap<String, Option<Vec<TopologyHint>>>;
