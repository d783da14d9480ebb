//! What must hold for any `ipam` object that is accepted. Called by `crate::fuzzing`.

use std::collections::HashSet;
use std::path::Path;

use serde_json::Value;

use super::HostLocalConfig;
use super::alloc::{choose, lease_requested};

/// Leases lie in a folder of the network's own, and every address that is given out is one of a range.
pub(crate) fn ranges(config: &HostLocalConfig, conf: &Value, data_dir: &str) {
    let elsewhere = conf.pointer("/ipam/dataDir").and_then(Value::as_str).filter(|dir| !dir.is_empty());
    let name = conf.get("name").and_then(Value::as_str).unwrap_or_default();
    assert_eq!(config.dir, Path::new(elsewhere.unwrap_or(data_dir)).join(name));
    assert!(!config.sets.is_empty());
    for set in &config.sets {
        let v4 = set.ranges.iter().filter(|range| range.start.is_ipv4()).count();
        assert!(!set.ranges.is_empty() && (v4 == 0 || v4 == set.ranges.len()));
        for range in &set.ranges {
            assert!(
                range.start <= range.end
                    && range.subnet.contains(&range.start)
                    && range.subnet.contains(&range.end)
            );
        }
        let (mut taken, mut last) = (HashSet::new(), None);
        for _ in 0..3 {
            let Some(lease) = choose(set, last, &taken) else { break };
            let address = lease.address.addr();
            assert!(set.ranges.iter().any(|range| range.contains(address)), "{address} is of no range");
            assert!(lease.gateway != Some(address), "{address} is the gateway's");
            assert!(taken.insert(address), "{address} was given out twice");
            assert_eq!(lease_requested(set, address).map(|lease| lease.address), Some(lease.address));
            last = Some(address);
        }
    }
    for (number, lease) in &config.requested {
        let set = config.sets.get(*number).map(|set| set.ranges.as_slice()).unwrap_or_default();
        assert!(set.iter().any(|range| range.contains(lease.address.addr())));
    }
}
