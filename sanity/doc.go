// Package sanity tests the whole driver: csi-sanity, the sweep of faults, and the suites of sanity/contract, over the
// same wiring as the program has.
package sanity
