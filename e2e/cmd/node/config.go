package main

// serviceAddress is that of the service "kubernetes".
const serviceAddress = "10.96.0.1"

// lvmLocal is what LVM needs to know on a node without udev and without dmeventd. The driver brings its own settings.
const lvmLocal = `devices { obtain_device_list_from_udev=0 external_device_info_source="none" filter=["a|^/dev/vdb$|","r|.*|"] }
activation { udev_sync=0 udev_rules=0 monitoring=0 }
backup { backup=0 archive=0 }
`

const cni = `{"cniVersion":"0.4.0","name":"e2e","plugins":[{"type":"bridge","bridge":"cni0","isGateway":true,"isDefaultGateway":true,
"ipMasq":false,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.88.0.0/24"}]]}}]}
`

const containerdConfig = `version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri", "io.containerd.snapshotter.v1.erofs", "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = 'localhost/pause:1'
[plugins.'io.containerd.cri.v1.runtime']
  disable_apparmor = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = 'runc'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = 'io.containerd.runc.v2'
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        BinaryName = '/state/bin/runc'
        SystemdCgroup = false
`

// kubeletConfig differs from the default in what the machine does not have (systemd, iptables, much disk), and in that
// nobody needs to log in to it.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
enforceNodeAllocatable: []
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
failSwapOn: false
makeIPTablesUtilChains: false
resolvConf: ""
evictionHard: {memory.available: "0%", nodefs.available: "0%", imagefs.available: "0%", nodefs.inodesFree: "0%"}
imageGCHighThresholdPercent: 100
nodeStatusUpdateFrequency: 5s
syncFrequency: 10s # how soon it sees that a claim has grown
maxPods: 110
`
