// A Vulkan layer for one purpose: Dawn takes no adapter that can't index arrays of images
// dynamically, and lavapipe up to Mesa 22 says that it can't. Compute shaders on buffers have no
// such arrays. The layer claims the features when it is asked, and takes the claim back when a
// device is made, so that the driver is never asked for what it lacks.
#include "../vulkan_layer.h"

static PFN_vkGetPhysicalDeviceFeatures features_below;
static PFN_vkGetPhysicalDeviceFeatures2 features2_below;
static PFN_vkGetPhysicalDeviceFeatures2KHR features2_khr_below;

// The four claims, as byte offsets into VkPhysicalDeviceFeatures.
static const size_t CLAIMS[] = {
    offsetof(VkPhysicalDeviceFeatures, shaderUniformBufferArrayDynamicIndexing),
    offsetof(VkPhysicalDeviceFeatures, shaderSampledImageArrayDynamicIndexing),
    offsetof(VkPhysicalDeviceFeatures, shaderStorageBufferArrayDynamicIndexing),
    offsetof(VkPhysicalDeviceFeatures, shaderStorageImageArrayDynamicIndexing),
};
#define CLAIM(features, i) (*(VkBool32 *)((char *)(features) + CLAIMS[i]))
#define CLAIM_COUNT (sizeof CLAIMS / sizeof CLAIMS[0])

static void claim(VkPhysicalDeviceFeatures *features) {
    for (size_t i = 0; i < CLAIM_COUNT; i++) CLAIM(features, i) = VK_TRUE;
}

static void take_back(VkPhysicalDevice adapter, VkPhysicalDeviceFeatures *wanted) {
    VkPhysicalDeviceFeatures real;
    features_below(adapter, &real);
    for (size_t i = 0; i < CLAIM_COUNT; i++)
        if (!CLAIM(&real, i)) CLAIM(wanted, i) = VK_FALSE;
}

static VKAPI_ATTR void VKAPI_CALL get_features(VkPhysicalDevice adapter,
                                               VkPhysicalDeviceFeatures *features) {
    features_below(adapter, features);
    claim(features);
}

static VKAPI_ATTR void VKAPI_CALL get_features2(VkPhysicalDevice adapter,
                                                VkPhysicalDeviceFeatures2 *features) {
    features2_below(adapter, features);
    claim(&features->features);
}

static VKAPI_ATTR void VKAPI_CALL get_features2_khr(VkPhysicalDevice adapter,
                                                    VkPhysicalDeviceFeatures2 *features) {
    features2_khr_below(adapter, features);
    claim(&features->features);
}

static VKAPI_ATTR VkResult VKAPI_CALL create_instance(const VkInstanceCreateInfo *info,
                                                      const VkAllocationCallbacks *allocator,
                                                      VkInstance *made) {
    VkResult result = create_instance_below(info, allocator, made);
    if (result != VK_SUCCESS) return result;
    features_below = INSTANCE_BELOW(vkGetPhysicalDeviceFeatures);
    features2_below = INSTANCE_BELOW(vkGetPhysicalDeviceFeatures2);
    features2_khr_below = INSTANCE_BELOW(vkGetPhysicalDeviceFeatures2KHR);
    return result;
}

static VKAPI_ATTR VkResult VKAPI_CALL create_device(VkPhysicalDevice adapter,
                                                    const VkDeviceCreateInfo *info,
                                                    const VkAllocationCallbacks *allocator,
                                                    VkDevice *made) {
    if (enter_device(info) != VK_SUCCESS) return VK_ERROR_INITIALIZATION_FAILED;
    VkDeviceCreateInfo asked = *info;
    VkPhysicalDeviceFeatures features;
    if (info->pEnabledFeatures) {
        features = *info->pEnabledFeatures;
        take_back(adapter, &features);
        asked.pEnabledFeatures = &features;
    }
    for (VkBaseOutStructure *next = (VkBaseOutStructure *)info->pNext; next; next = next->pNext)
        if (next->sType == VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2)
            take_back(adapter, &((VkPhysicalDeviceFeatures2 *)next)->features);
    return INSTANCE_BELOW(vkCreateDevice)(adapter, &asked, allocator, made);
}

static PFN_vkVoidFunction ours(const char *name) {
    static const struct {
        const char *name;
        PFN_vkVoidFunction function;
    } table[] = {
        {"vkGetInstanceProcAddr", (PFN_vkVoidFunction)instance_proc},
        {"vkGetDeviceProcAddr", (PFN_vkVoidFunction)device_proc},
        {"vkCreateInstance", (PFN_vkVoidFunction)create_instance},
        {"vkCreateDevice", (PFN_vkVoidFunction)create_device},
        {"vkGetPhysicalDeviceFeatures", (PFN_vkVoidFunction)get_features},
        {"vkGetPhysicalDeviceFeatures2", (PFN_vkVoidFunction)get_features2},
        {"vkGetPhysicalDeviceFeatures2KHR", (PFN_vkVoidFunction)get_features2_khr},
    };
    if (strcmp(name, "vkGetPhysicalDeviceFeatures2") == 0 && !features2_below) return NULL;
    if (strcmp(name, "vkGetPhysicalDeviceFeatures2KHR") == 0 && !features2_khr_below) return NULL;
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        if (strcmp(name, table[i].name) == 0) return table[i].function;
    return NULL;
}
