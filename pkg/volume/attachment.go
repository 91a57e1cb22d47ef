package volume

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Attachment is the publication of a volume to a node by the controller (CSI spec, ControllerPublishVolume). The zero
// Attachment is none.
type Attachment struct {
	Node     string // the node_id, as NodeGetInfo gives it
	ReadOnly bool
	Mode     AccessMode
}

// String gives the form that is kept in a tag, node/rw/MODE, which ParseAttachment reads; "" for none.
func (a Attachment) String() string {
	if a == (Attachment{}) {
		return ""
	}
	return a.Node + "/" + a.access() + "/" + string(a.Mode)
}

func (a Attachment) access() string {
	if a.ReadOnly {
		return "ro"
	}
	return "rw"
}

// Attachment reads what the tags say; zero where the volume is not attached. An error where that cannot be understood, which
// is not "not attached".
func (t Tags) Attachment() (Attachment, error) {
	if t.Attached == "" {
		return Attachment{}, nil
	}
	parts := strings.Split(t.Attached, "/")
	if len(parts) == 3 && nodeName.MatchString(parts[0]) && slices.Contains(AccessModes, AccessMode(parts[2])) {
		if a := (Attachment{Node: parts[0], ReadOnly: parts[1] == "ro", Mode: AccessMode(parts[2])}); a.String() == t.Attached {
			return a, nil
		}
	}
	return Attachment{}, fmt.Errorf("the tag %sattached=%s is not understood; ControllerUnpublishVolume without node_id takes it away", tagPrefix, t.Attached)
}

const keyReadOnly = "readonly"

// PublishContext is the publish_context of an attachment: what the node must know of it.
func (a Attachment) PublishContext() map[string]string {
	return map[string]string{keyReadOnly: strconv.FormatBool(a.ReadOnly)}
}

// ParsePublishContext reads a publish_context. Whatever else is in it, another version of the driver may have put there.
func ParsePublishContext(context map[string]string) (readOnly bool, err error) {
	switch v := context[keyReadOnly]; v {
	case "true":
		return true, nil
	case "", "false":
		return false, nil
	default:
		return false, Invalid("publish_context["+keyReadOnly+"]", v, `say "true" or "false"`)
	}
}
