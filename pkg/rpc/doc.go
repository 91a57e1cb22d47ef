// Package rpc is the driver's face to the container orchestrator (CO): the socket, what is done with every call (log,
// code, serialise, catch), and the Identity service. It is the only place that makes a gRPC status; handlers return
// plain errors.
package rpc
