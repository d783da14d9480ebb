//! The wire contracts as Rust types. Owns nothing but the .proto files beside it;
//! never holds logic. Used by agent and cli (CRI client, operator), shim (CRI
//! server, monitor client) and the monitor program (without the `grpc` feature).

/// A module of what was generated from one file, with the services of gRPC.
macro_rules! generated {
    ($(#[$about:meta])* $name:ident { $code:item }) => {
        $(#[$about])*
        #[cfg(feature = "grpc")]
        #[allow(
            missing_docs,
            clippy::all,
            clippy::pedantic,
            clippy::restriction,
            unreachable_pub,
            reason = "generated code"
        )]
        pub mod $name {
            $code
        }
    };
}

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

generated! {
    /// What our runtime tells beyond CRI, `gantry.runtime_ext.v1`.
    runtime_ext { tonic::include_proto!("gantry.runtime_ext.v1"); }
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

generated! {
    /// The `gantry` command's requests to an agent, `gantry.operator.v1`.
    operator { tonic::include_proto!("gantry.operator.v1"); }
}

generated! {
    /// What a gRPC probe asks a container, `grpc.health.v1`.
    health { tonic::include_proto!("grpc.health.v1"); }
}

generated! {
    /// The device plugin API, `v1beta1` (k8s.io/kubelet v0.36.3).
    deviceplugin { tonic::include_proto!("v1beta1"); }
}

generated! {
    /// How plugins make themselves known, `pluginregistration` (k8s.io/kubelet v0.36.3).
    pluginregistration { tonic::include_proto!("pluginregistration"); }
}

generated! {
    /// What pods have of a node, `v1` (k8s.io/kubelet v0.36.3).
    podresources { tonic::include_proto!("v1"); }
}

generated! {
    /// The same as older clients ask, `v1alpha1` (k8s.io/kubelet v0.36.3).
    podresources_v1alpha1 { tonic::include_proto!("v1alpha1"); }
}

generated! {
    /// What the kubelet asks of a CSI driver, `csi.v1` (container-storage-interface/spec v1.9.0).
    csi { tonic::include_proto!("csi.v1"); }
}

generated! {
    /// What the kubelet asks of a DRA driver, `k8s.io.kubelet.pkg.apis.dra.v1` (k8s.io/kubelet v0.36.3).
    dra { tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1"); }
}

generated! {
    /// The same as older drivers speak it, `v1beta1` (k8s.io/kubelet v0.36.3).
    dra_v1beta1 { tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1beta1"); }
}

generated! {
    /// How a DRA driver tells of its devices, `v1alpha1` (k8s.io/kubelet v0.36.3).
    dra_health { include!(concat!(env!("OUT_DIR"), "/dra_health/v1alpha1.rs")); }
}

generated! {
    /// How spans are sent to a collector, `opentelemetry.proto.collector.trace.v1` (opentelemetry-proto v1.10.0).
    otlp { tonic::include_proto!("opentelemetry.proto.collector.trace.v1"); }
}
