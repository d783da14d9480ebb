//! The wire contracts as Rust types. Owns nothing but the .proto files beside it;
//! never holds logic. Used by agent and cli (CRI client, operator), shim (CRI
//! server, monitor client) and the monitor program (without the `grpc` feature).

/// CRI v1, `runtime.v1` (k8s.io/cri-api v0.36.3).
#[cfg(feature = "grpc")]
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    unreachable_pub,
    deprecated,
    reason = "generated code"
)]
pub mod cri {
    tonic::include_proto!("runtime.v1");
}

/// What our runtime tells beyond CRI, `gantry.runtime_ext.v1`.
#[cfg(feature = "grpc")]
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    unreachable_pub,
    reason = "generated code"
)]
pub mod runtime_ext {
    tonic::include_proto!("gantry.runtime_ext.v1");
}

/// The runtime's requests to a pod's monitor, `gantry.monitor.v1`.
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    unreachable_pub,
    reason = "generated code"
)]
pub mod monitor {
    include!(concat!(env!("OUT_DIR"), "/gantry.monitor.v1.rs"));

    /// Version spoken by this build; a monitor answers Hello with its own. A runtime speaks every
    /// version from 1 on, because monitors outlive it by months.
    pub const PROTOCOL_VERSION: u32 = 3;
}

/// The `gantry` command's requests to an agent, `gantry.operator.v1`.
#[cfg(feature = "grpc")]
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    unreachable_pub,
    reason = "generated code"
)]
pub mod operator {
    tonic::include_proto!("gantry.operator.v1");
}

/// What a gRPC probe asks a container, `grpc.health.v1`.
#[cfg(feature = "grpc")]
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    unreachable_pub,
    reason = "generated code"
)]
pub mod health {
    tonic::include_proto!("grpc.health.v1");
}

/// The device plugin API, `v1beta1` (k8s.io/kubelet v0.36.3).
#[cfg(feature = "grpc")]
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    unreachable_pub,
    reason = "generated code"
)]
pub mod deviceplugin {
    tonic::include_proto!("v1beta1");
}

/// How plugins make themselves known, `pluginregistration` (k8s.io/kubelet v0.36.3).
#[cfg(feature = "grpc")]
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    unreachable_pub,
    reason = "generated code"
)]
pub mod pluginregistration {
    tonic::include_proto!("pluginregistration");
}

/// What pods have of a node, `v1` (k8s.io/kubelet v0.36.3).
#[cfg(feature = "grpc")]
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    unreachable_pub,
    reason = "generated code"
)]
pub mod podresources {
    tonic::include_proto!("v1");
}

/// The same as older clients ask, `v1alpha1` (k8s.io/kubelet v0.36.3).
#[cfg(feature = "grpc")]
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    unreachable_pub,
    reason = "generated code"
)]
pub mod podresources_v1alpha1 {
    tonic::include_proto!("v1alpha1");
}

/// What the kubelet asks of a CSI driver, `csi.v1` (container-storage-interface/spec v1.9.0).
#[cfg(feature = "grpc")]
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    unreachable_pub,
    reason = "generated code"
)]
pub mod csi {
    tonic::include_proto!("csi.v1");
}

/// What the kubelet asks of a DRA driver, `k8s.io.kubelet.pkg.apis.dra.v1` (k8s.io/kubelet v0.36.3).
#[cfg(feature = "grpc")]
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    unreachable_pub,
    reason = "generated code"
)]
pub mod dra {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
}

/// The same as older drivers speak it, `v1beta1` (k8s.io/kubelet v0.36.3).
#[cfg(feature = "grpc")]
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    unreachable_pub,
    reason = "generated code"
)]
pub mod dra_v1beta1 {
    tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1beta1");
}

/// How a DRA driver tells of its devices, `v1alpha1` (k8s.io/kubelet v0.36.3).
#[cfg(feature = "grpc")]
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    unreachable_pub,
    reason = "generated code"
)]
pub mod dra_health {
    include!(concat!(env!("OUT_DIR"), "/dra_health/v1alpha1.rs"));
}

/// How spans are sent to a collector, `opentelemetry.proto.collector.trace.v1` (opentelemetry-proto v1.10.0).
#[cfg(feature = "grpc")]
#[allow(
    missing_docs,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    unreachable_pub,
    reason = "generated code"
)]
pub mod otlp {
    tonic::include_proto!("opentelemetry.proto.collector.trace.v1");
}
