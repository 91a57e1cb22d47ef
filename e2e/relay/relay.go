// Package relay leads connections on.
package relay

import (
	"errors"
	"io"
	"net"
	"sync"
)

// Listen leads what connects to an address of this machine to another one, for as long as the process lives.
func Listen(from, to string) error {
	l, err := net.Listen("tcp", from)
	if err != nil {
		return err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _ = To(c, to) }() // who connected sees that the connection has ended
		}
	}()
	return nil
}

// To connects to an address and passes everything on, both ways, until both have ended. It closes c.
func To(c net.Conn, to string) error {
	d, err := net.Dial("tcp", to)
	if err != nil {
		return errors.Join(err, c.Close())
	}
	Both(c, d)
	return nil
}

// Both passes everything on between two connections until both have ended, and closes them.
func Both(c, d net.Conn) {
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{c, d}, {d, c}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1])
			if half, ok := way[0].(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite()
			}
		})
	}
	both.Wait()
	_, _ = c.Close(), d.Close()
}
