// Command sidecars stands in for two upstream programs that are not published as Go modules, and goes by the name it is
// called with. Both take the upstream flags that concern them.
//
//   - csi-node-driver-registrar tells the kubelet, over its plugin registration socket, that there is a driver;
//   - livenessprobe answers HTTP requests with what the driver answers to Probe.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

var (
	address      = flag.String("csi-address", "/run/csi/socket", "the driver's socket")
	timeout      = flag.Duration("timeout", time.Minute, "of a call")
	probeTimeout = flag.Duration("probe-timeout", 10*time.Second, "of a Probe")
	endpoint     = flag.String("http-endpoint", "", "where to answer HTTP requests")
	port         = flag.Int("health-port", 9808, "the same, on all addresses")
	registered   = flag.String("kubelet-registration-path", "", "the driver's socket as the kubelet sees it")
	folder       = flag.String("plugin-registration-path", "/registration", "where the kubelet looks for new plugins")
	_            = flag.Int("v", 0, "verbosity; there is one only")
)

func main() {
	flag.Parse()
	connection, err := grpc.NewClient("unix://"+*address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	identity := csi.NewIdentityClient(connection)
	switch name := filepath.Base(os.Args[0]); name {
	case "csi-node-driver-registrar":
		log.Fatal(register(identity))
	case "livenessprobe":
		log.Fatal(http.ListenAndServe(listen(), health(identity)))
	default:
		log.Fatalf("%s: no sidecar of this name", name)
	}
}

func listen() string {
	if *endpoint != "" {
		return *endpoint
	}
	return fmt.Sprintf(":%d", *port)
}

// health answers /healthz.
func health(identity csi.IdentityClient) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), *probeTimeout)
		defer cancel()
		answer, err := identity.Probe(ctx, &csi.ProbeRequest{})
		switch {
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		case answer.GetReady() != nil && !answer.GetReady().GetValue():
			http.Error(w, "not ready", http.StatusInternalServerError)
		default:
			fmt.Fprintln(w, "ok")
		}
	})
	return mux
}

// register waits for the driver, and then serves the kubelet until it says that it will not have the driver.
func register(identity csi.IdentityClient) error {
	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	info, err := identity.GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	socket := filepath.Join(*folder, info.GetName()+"-reg.sock")
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return err
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	registration.RegisterRegistrationServer(server, &registrar{name: info.GetName()})
	if *endpoint != "" {
		go func() { log.Fatal(http.ListenAndServe(*endpoint, health(identity))) }()
	}
	return server.Serve(l)
}

type registrar struct {
	registration.UnimplementedRegistrationServer
	name string
}

// GetInfo tells the kubelet which driver it is, and where.
func (r *registrar) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: registration.CSIPlugin, Name: r.name, Endpoint: *registered, SupportedVersions: []string{"1.0.0"}}, nil
}

// NotifyRegistrationStatus ends the program if the kubelet refuses the driver: then it is started again, as upstream.
func (r *registrar) NotifyRegistrationStatus(_ context.Context, status *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	if !status.PluginRegistered {
		log.Fatalf("the kubelet does not register the driver: %s", status.Error)
	}
	log.Printf("registered %s", r.name)
	return &registration.RegistrationStatusResponse{}, nil
}
