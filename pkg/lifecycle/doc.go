// Package lifecycle carries the verbs of a volume's life on a node. It owns their order: intent, effect, forget.
package lifecycle
