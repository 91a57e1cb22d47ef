// Package rules holds tests of the source itself: which package may import which, that each package says what it is
// for, and words that do not belong in the tree. What a linter can tell is in .golangci.yml instead.
package rules
