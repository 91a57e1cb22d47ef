// Command prepare builds the components of the tests' cluster, if that has not been done. It takes half an hour of two
// cores the first time, and no time afterwards.
package main

import (
	"fmt"
	"log"

	"github.com/csi-local-lvm/csi-local-lvm/e2e/cluster"
)

func main() {
	home, err := cluster.FindHome()
	if err != nil {
		log.Fatal(err)
	}
	programs, err := home.Programs()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(programs.Kubernetes, programs.Tools)
}
