//! The service manager's watchdog: that the kubelet is still well. Owns when that is told; never what well means.
//! Called by [`super::run`].

use std::time::Duration;

use super::Notify;
use crate::healthz::Checks;

/// Twice in each period, as long as all is well.
pub(super) async fn keep_alive(period: Duration, checks: Checks, notify: Notify) {
    tracing::info!(interval = ?(period / 2), "Starting systemd watchdog with interval");
    loop {
        match checks.all() {
            Err(error) => tracing::error!(
                err = error,
                "Do not notify watchdog this iteration as the kubelet is reportedly not healthy"
            ),
            Ok(()) => {
                if let Err(error) = notify("WATCHDOG=1") {
                    tracing::error!(err = %error, "Failed to notify watchdog");
                }
            }
        }
        tokio::time::sleep(period / 2).await;
    }
}
