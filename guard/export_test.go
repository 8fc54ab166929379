package guard

// Abandon ends a lease's renewals without a release, as the death of its process does.
func Abandon(h Held) {
	lease := h.(*heldLease)
	lease.stop()
	<-lease.done
}
