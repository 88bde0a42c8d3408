/* Makes room for the next pair of types. Template of kernels.c. */
#undef STORE
#undef STORE_DTYPE
#undef N
#undef TABLE
#undef LANES
#undef TILE_Q
#undef TILE_K
