// Package driver makes a driver of its parts: plain values in, a server on a socket out. It is the wiring that the
// program and the tests share; what it is given (real LVM and mounts, or a machine in memory) is all that differs.
package driver
