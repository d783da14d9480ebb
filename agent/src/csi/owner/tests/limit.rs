//! Volumes that find no room on the node, as their attacher says, and what is asked and told of that.

use gantry_kube_client::fake_apiserver::FakeApiServer;
use serde_json::Value;

use super::*;
use crate::csi::allocatable::Allocatable;
use crate::csi::node_info::NodeInfo;

const CSI_NODE: &str = "/apis/storage.k8s.io/v1/csinodes/n1";

/// Of a driver that is asked again and again.
const PERIOD: Option<Duration> = Some(Duration::from_secs(3600));

struct Full {
    bed: Bed,
    server: FakeApiServer,
}

impl Full {
    /// The attacher has failed with that code.
    fn new(period: Option<Duration>, code: Option<i32>) -> Self {
        let (bed, server) = (Bed::new(), FakeApiServer::default());
        let object = CsiDriver { attach_required: true, allocatable_period: period, ..object() };
        bed.api.put_csi_driver(DRIVER, object);
        let failed = Attachment { error: Some("full".to_owned()), error_code: code, ..Attachment::default() };
        bed.api.put_attachment(&steps::attachment_name("h1", DRIVER, "n1"), failed);
        server.put("/api/v1/nodes/n1", json!({ "metadata": { "uid": "node-uid" } }));
        bed.driver.says("i-1", 3, &[]);
        bed.volumes.attachments().see_node(&node(&[KEY], &[]));
        let full = Self { bed, server };
        full.ask_anew();
        full
    }

    fn ask_anew(&self) {
        let Bed { api, drivers, volumes, .. } = &self.bed;
        let cluster = NodeInfo::new(self.server.client(), "n1");
        volumes.ask_anew_by(Allocatable::new(api.clone(), drivers.clone(), cluster));
    }

    async fn mount(&self) -> MountError {
        self.bed.volumes.mount(&pod("a"), &wanted(), nothing_owned).await.unwrap_err()
    }

    /// The pod has waited as long as upstream lets it.
    async fn mount_late(&self) -> MountError {
        let early = self.mount().await;
        assert!(early.quiet && early.unattached && !early.no_room, "{early:?}");
        tokio::time::sleep(LONG_WAIT).await;
        self.mount().await
    }

    /// What the cluster knows of the driver.
    fn told(&self) -> Value {
        let object = self.server.get(CSI_NODE).unwrap_or_default();
        object["spec"]["drivers"][0]["allocatable"]["count"].clone()
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_has_waited_long_has_no_room_and_the_cluster_knows_before_it_goes() {
    let full = Full::new(PERIOD, Some(8));
    let late = full.mount_late().await;
    assert!(late.no_room && late.unattached && !late.quiet, "{late:?}");
    assert_eq!((full.told(), full.bed.driver.infos()), (json!(3), 1));
    full.bed.volumes.unmount_all(&pod("a").uid).await.unwrap();
    full.bed.empty().await;
    assert_eq!(full.bed.driver.calls(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn other_failures_and_drivers_that_are_not_asked_again_leave_a_pod_waiting() {
    for (period, code) in [(None, Some(8)), (PERIOD, Some(13)), (PERIOD, None)] {
        let full = Full::new(period, code);
        let late = full.mount_late().await;
        assert!(!late.no_room && !late.quiet, "{period:?} {code:?}: {late:?}");
        assert!(late.message.ends_with("context deadline exceeded"), "{late:?}");
        assert_eq!((full.told(), full.bed.driver.infos()), (Value::Null, 0), "{period:?} {code:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_attachment_that_is_not_there_says_nothing_of_room() {
    let mut full = Full::new(PERIOD, Some(8));
    full.bed.api = Arc::default();
    let object = CsiDriver { attach_required: true, allocatable_period: PERIOD, ..object() };
    full.bed.api.put_csi_driver(DRIVER, object);
    full.bed.restart();
    full.ask_anew();
    full.bed.volumes.attachments().see_node(&node(&[KEY], &[]));
    assert!(!full.mount_late().await.no_room);
}

/// Its pod is rejected all the same, once the call has been given up.
#[tokio::test(start_paused = true)]
async fn a_driver_that_does_not_say_how_many_keeps_no_pod_waiting() {
    for trouble in [Trouble::Hangs, Trouble::Refused(Code::Internal)] {
        let full = Full::new(PERIOD, Some(8));
        full.bed.driver.fails("info", trouble);
        assert!(full.mount_late().await.no_room, "{trouble:?}");
        assert_eq!((full.told(), full.bed.driver.infos()), (Value::Null, 1), "{trouble:?}");
    }
}

/// A kubelet that follows does not know whether a volume is attached before it is told.
#[tokio::test(start_paused = true)]
async fn a_pod_that_has_its_volume_mounted_is_not_without_room() {
    let mut full = Full::new(PERIOD, Some(8));
    let name = steps::attachment_name("h1", DRIVER, "n1");
    full.bed.api.put_attachment(&name, Attachment { attached: true, ..Attachment::default() });
    full.bed.volumes.attachments().see_node(&node(&[KEY], &[KEY]));
    full.bed.mount(&pod("a"), &wanted()).await.unwrap();
    full.bed.restart();
    full.ask_anew();
    full.bed.volumes.attachments().see_node(&node(&[KEY], &[]));
    let failed = Attachment { error_code: Some(8), ..Attachment::default() };
    full.bed.api.put_attachment(&name, failed);
    let late = full.mount_late().await;
    assert!(!late.no_room && !late.quiet, "{late:?}");
    assert_eq!(full.bed.driver.infos(), 0);
}
