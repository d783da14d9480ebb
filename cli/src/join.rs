//! `gantry join`: makes this machine a node of a cluster that kubeadm or kind made. Owns finding the cluster and the
//! order of looking, deciding ([`plan`]), doing ([`apply`]) and telling. Called by main; [`crate::leave`] takes it back.

pub(crate) mod admin;
mod apply;
mod cluster;
pub(crate) mod discovery;
mod docker;
mod document;
pub(crate) mod facts;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod kubeadm;
pub(crate) mod look;
pub(crate) mod plan;
pub(crate) mod record;
pub(crate) mod step;

use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use gantry_kube_client::identity::kubeconfig::{self, Access, Trust};
use gantry_kube_client::identity::pair;

use self::apply::Doer;
pub(crate) use self::apply::set;
use self::discovery::{CaHash, ClusterInfo, Endpoint, Token};
use self::docker::Docker;
use self::facts::{ClusterFacts, JoinRequest};
use self::plan::Plan;
use self::record::JoinRecord;
use crate::args::JoinArgs;
use crate::doctor::join::JoinTarget;
use crate::{doctor, output};

/// For the control plane to sign cluster-info with a token that was just made.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sysctls that kubelets (kernel, vm) and kube-proxies set, and to what.
pub(crate) const FOREIGN: [(&str, &str); 9] = [
    ("kernel.keys.root_maxbytes", "25000000"),
    ("kernel.keys.root_maxkeys", "1000000"),
    ("kernel.panic", "10"),
    ("kernel.panic_on_oops", "1"),
    ("vm.overcommit_memory", "1"),
    ("vm.panic_on_oom", "0"),
    ("net.ipv4.conf.all.route_localnet", "1"),
    ("net.netfilter.nf_conntrack_tcp_timeout_established", "86400"),
    ("net.netfilter.nf_conntrack_tcp_timeout_close_wait", "3600"),
];

/// A cluster that was found, and by whose rights.
struct DiscoveredCluster {
    cluster: ClusterFacts,
    ca_hashes: Vec<CaHash>,
    /// None: the administrator makes one.
    token: Option<Token>,
    admin: Option<kube::Client>,
}

/// Joins, or says what would be done.
///
/// # Errors
/// When the cluster cannot be found, or a step fails: what was done until then is in the record, and the same command
/// goes on from there.
pub(crate) async fn join(args: JoinArgs) -> Result<ExitCode> {
    let record = JoinRecord::read(Path::new(record::PATH))?;
    // Before a token that has expired long since is looked at.
    if let Some(problem) = record.as_ref().and_then(plan::joined_already) {
        bail!("{problem}");
    }
    let found = find(&args).await?;
    let node = node_name(&args);
    let wanted = JoinRequest {
        node_name: args.node_name,
        node_ip: args.node_ip,
        cri_socket: args.cri_socket,
        ignored_checks: args.ignore_preflight_errors,
        ca_hashes: found.ca_hashes.iter().map(ToString::to_string).collect(),
        token: found.token.as_ref().map(ToString::to_string),
    };
    let target = JoinTarget {
        endpoint: found.cluster.endpoint.clone(),
        token: wanted.token.clone(),
        hashes: wanted.ca_hashes.clone(),
    };
    for note in doctor::join::notes(&target, &wanted.cri_socket, &node).await {
        output::say(&format!("note: {note}"));
    }
    let machine = look::machine(&found.cluster, &wanted).await;
    let plan = match plan::plan(&machine, &found.cluster, &wanted, record.as_ref()) {
        Ok(plan) => plan,
        Err(problems) => {
            problems.iter().for_each(|problem| output::say(&format!("error: {problem}")));
            return Ok(ExitCode::FAILURE);
        }
    };
    if args.dry_run {
        return tell(&plan).map(|()| ExitCode::SUCCESS);
    }
    let (kubeadm, _) = machine.kubeadm.context("no kubeadm")?;
    let endpoint = found.cluster.endpoint.to_string();
    let record = match record {
        Some(record) => record,
        None => JoinRecord::new(endpoint, node, look::before(&found.cluster)?),
    };
    let doer = Doer::new(kubeadm, wanted.cri_socket, record, found.admin.as_ref());
    run(doer, &plan).await.map(|()| ExitCode::SUCCESS)
}

fn tell(plan: &Plan) -> Result<()> {
    let steps = plan.steps.iter().map(|step| format!("would {step}\n"));
    let notes = plan.notes.iter().map(|note| format!("note: {note}\n"));
    Ok(output::print(steps.chain(notes).collect::<String>().as_bytes())?)
}

async fn run(mut doer: Doer<'_>, plan: &Plan) -> Result<()> {
    for note in &plan.notes {
        output::say(&format!("note: {note}"));
    }
    for step in &plan.steps {
        output::print(format!("{step}\n").as_bytes())?;
        let left = doer.step(step).await.with_context(|| {
            "the machine is no node yet: mend what is named here and give the same command again, or `gantry leave` \
             takes back what was done"
        })?;
        if let Some(text) = left {
            output::say(&format!("warning: {text}"));
        }
    }
    let node = &doer.record.node;
    output::print(format!("{node} has joined: `kubectl get node {node}` shows it\n").as_bytes())?;
    Ok(())
}

fn node_name(args: &JoinArgs) -> String {
    let own = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    args.node_name.clone().unwrap_or_else(own).to_lowercase()
}

async fn find(args: &JoinArgs) -> Result<DiscoveredCluster> {
    if let (Some(token), Some(endpoint)) = (&args.token, &args.endpoint) {
        let hashes = &args.discovery_token_ca_cert_hash;
        let info = discovery::cluster_info(endpoint, None, token, hashes, PATIENCE).await?;
        let access = endpoint.access(None, Trust::Data(info.authority), discovery::bearer(token))?;
        let cluster = cluster::read(&discovery::connect(&access)?, endpoint.clone(), info.server).await?;
        return Ok(DiscoveredCluster {
            cluster,
            ca_hashes: hashes.clone(),
            token: Some(token.clone()),
            admin: None,
        });
    }
    if let Some(name) = &args.kind {
        return by_kind(name, args).await;
    }
    let file = args.kubeconfig.as_ref().context("no --token, --kind or --kubeconfig")?;
    let access = kubeconfig::read(file)?;
    let access = match &args.endpoint {
        Some(endpoint) => admin::with_endpoint(access, endpoint)?,
        None => access,
    };
    let (client, info) = ask(&access).await?;
    let own = admin::endpoint(&access)?;
    let endpoint = match &args.endpoint {
        Some(endpoint) => endpoint.clone(),
        // A port of this machine that leads there, as kind makes them, is no way for a kubelet.
        None if is_loopback(&own.host) => info.server.clone(),
        None => own,
    };
    by_admin(client, info, endpoint).await
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// The administrator's kubeconfig is in the container, and the container's address is the API server's.
async fn by_kind(name: &str, args: &JoinArgs) -> Result<DiscoveredCluster> {
    let docker = Docker::at(&args.docker_socket);
    let container = format!("{name}-control-plane");
    let text = docker.admin(&container).await?;
    let access = kubeconfig::parse(&text, Path::new("admin.conf"))?;
    let address = docker.address(&container).await?;
    let at = |ip: IpAddr, port| Endpoint { host: ip.to_string(), port };
    let inside = at(address, admin::endpoint(&access)?.port);
    let (client, info) = ask(&admin::with_endpoint(access, &inside)?).await?;
    let endpoint = match &args.endpoint {
        Some(endpoint) => endpoint.clone(),
        None if info.server.host == container => inside,
        // With several control planes it is a load balancer's, another container.
        None => at(docker.address(&info.server.host).await?, info.server.port),
    };
    by_admin(client, info, endpoint).await
}

async fn ask(access: &Access) -> Result<(kube::Client, ClusterInfo)> {
    let client = admin::connect(access)?;
    let info = admin::cluster_info(&client).await?;
    Ok((client, info))
}

async fn by_admin(client: kube::Client, info: ClusterInfo, endpoint: Endpoint) -> Result<DiscoveredCluster> {
    // kubeadm will, and would wait for minutes.
    discovery::read(&endpoint, None, Trust::Data(info.authority.clone())).await?;
    let certificates =
        pair::certificates_of(&info.authority).context("the certificate authority in cluster-info")?;
    let ca_hashes = certificates.iter().map(CaHash::of).collect::<Result<Vec<_>, _>>()?;
    let cluster = cluster::read(&client, endpoint, info.server).await?;
    Ok(DiscoveredCluster { cluster, ca_hashes, token: None, admin: Some(client) })
}
