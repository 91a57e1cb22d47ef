package copy

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugePage is the size of a transparent huge page, where the processor has pages of 4 KiB.
const hugePage = 2 << 20

// buffers is the memory of a copy: inFlight blocks, each at a multiple of hugePage, if the kernel can, in one page. The kernel
// pins and describes a buffer of direct I/O page by page, and a disk takes so many parts to a request (queue/max_segments in sysfs): of small
// pages, which lie anywhere, a block is hundreds of parts and several requests; of one large page it is one part. That made copies
// twice as fast. It is not of Go's heap: that promises no alignment, which O_DIRECT needs (open(2)), and is not given back at once.
type buffers struct{ mapped, aligned []byte }

func newBuffers() (*buffers, error) {
	const size = inFlight * blockBytes
	mapped, err := unix.Mmap(-1, 0, size+hugePage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANONYMOUS|unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	past := int(uintptr(unsafe.Pointer(&mapped[0])) % hugePage)
	aligned := mapped[(hugePage-past)%hugePage:][:size]
	// EINVAL: a kernel without huge pages. It does as well, only slower.
	if err := unix.Madvise(aligned, unix.MADV_HUGEPAGE); err != nil && !errors.Is(err, unix.EINVAL) {
		return nil, errors.Join(err, unix.Munmap(mapped))
	}
	return &buffers{mapped, aligned}, nil
}

// block gives the n-th of the blocks.
func (b *buffers) block(n int) []byte { return b.aligned[n*blockBytes:][:blockBytes] }

func (b *buffers) free() { _ = unix.Munmap(b.mapped) } // it was mapped
