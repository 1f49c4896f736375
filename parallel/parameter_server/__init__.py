"""BSP, ASP, SSP and GSP on MXNet's own parameter server."""
