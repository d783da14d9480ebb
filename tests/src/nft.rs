//! Tables of nftables in this network namespace, and the end of those that upstream's plugins leave. Owns the
//! names that upstream gives them; never looks at what is in a table. Called by tests that run those plugins.

use std::process::Command;

use anyhow::{Context, Result, ensure};

/// Lines like `table ip cni_hostport`.
///
/// # Errors
/// When nft is missing or fails.
pub fn tables() -> Result<Vec<String>> {
    let output = Command::new("nft").args(["list", "tables"]).output().context("start nft")?;
    ensure!(output.status.success(), "nft list tables: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect())
}

/// Deletes what upstream's plugins leave by design: their own tables, and the one that `iptables` makes where it is
/// installed, because `bridge` asks it at each DEL for masquerading that an earlier version may have set up.
///
/// # Errors
/// As [`tables`].
pub fn drop_upstream_tables() -> Result<()> {
    for table in tables()? {
        let upstreams = table.contains(" cni_") || table == "table ip nat" || table == "table ip6 nat";
        if upstreams {
            let words = ["delete"].into_iter().chain(table.split(' '));
            ensure!(
                Command::new("nft").args(words).status().context("start nft")?.success(),
                "delete {table}"
            );
        }
    }
    Ok(())
}
